// Which handler answers a method and a path.
//
// Thread-safety: filled by one thread, then read by any.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace zipage {

// Answers the exchange, sooner or later. An exception that leaves it becomes a 500.
using Handler = std::function<void(const ExchangePtr& exchange)>;

enum class RunsOn : uint8_t {
  kExchange,  // the exchange's thread, which carries other clients' streams: nothing that takes more than microseconds
  kWorker,    // the pool for text work; the answer goes through post()
};

struct Route {
  std::string method, path;
  RunsOn runs_on;
  Handler handler;
};

class Router {
 public:
  // A path that ends in "/*" stands for everything below it.
  void add(std::string_view method, std::string_view path, RunsOn runs_on, Handler handler);

  struct Match {
    const Route* route = nullptr;  // null: 404, or 405 when `allow` is not empty
    std::string allow;             // methods of the path, as in "GET, HEAD, POST"
  };
  // HEAD finds GET's.
  Match find(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace zipage
