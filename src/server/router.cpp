#include "server/router.h"

#include <utility>

namespace zipage {
namespace {

bool leads_to(std::string_view route, std::string_view path) {
  if (!route.ends_with("/*")) return route == path;
  route.remove_suffix(1);
  return path.size() > route.size() && path.starts_with(route);
}

}  // namespace

void Router::add(std::string_view method, std::string_view path, RunsOn runs_on, Handler handler) {
  routes_.push_back({std::string(method), std::string(path), runs_on, std::move(handler)});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match match;
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    if (!leads_to(route.path, path)) continue;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method;
    if (route.method == "GET") match.allow += ", HEAD";
    if (route.method == wanted) match.route = &route;
  }
  return match;
}

}  // namespace zipage
