#include <fstream>
#include <regex>
#include <set>

#include "server/server_test.h"

namespace zipage {
namespace {

using Dashboard = ServerTest;

TEST_F(Dashboard, EveryMetricThatItAsksForIsThere) {
  start();
  complete({{"prompt", "SAY[a]"}});
  const std::string metrics = get("/metrics").body;
  std::ifstream file(std::string(ZIPAGE_SOURCE_DIR) + "/deploy/grafana.json");
  const json dashboard = json::parse(file);
  std::set<std::string> names;
  const std::regex metric("(vllm|zipage):[a-z_]+");
  for (const json& panel : dashboard["panels"]) {
    for (const json& target : panel["targets"]) {
      const std::string query = target["expr"];
      for (std::sregex_iterator it(query.begin(), query.end(), metric), end; it != end; ++it) names.insert(it->str());
    }
  }
  EXPECT_GT(names.size(), 20U);
  for (const std::string& name : names) EXPECT_NE(metrics.find("\n" + name), std::string::npos) << name;
}

}  // namespace
}  // namespace zipage
