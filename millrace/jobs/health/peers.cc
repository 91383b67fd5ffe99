#include "millrace/jobs/health/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace millrace::jobs {
namespace {

constexpr double kSlower = 0.8, kMuchSlower = 0.5;
constexpr std::size_t kFewest = 3;
constexpr const char* kSlowMachine =
    "look for other processes there, a hot processor, a power limit, or a smaller type of machine";
constexpr const char* kSlowStore = "look at its network card and its way to the store, and at what else uses them";

}  // namespace

void CompareWithPeers(std::map<std::string, Findings>& reports) {
  std::map<std::string, std::vector<double>> speeds;
  for (const auto& [node, findings] : reports) {
    for (const Finding& finding : findings) {
      if (finding.speed > 0) speeds[finding.check].push_back(finding.speed);
    }
  }
  for (auto& [node, findings] : reports) {
    for (Finding& finding : findings) {
      std::vector<double>& all = speeds[finding.check];
      if (finding.speed <= 0 || all.size() < kFewest) continue;
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
      std::ranges::nth_element(all, middle);
      const double share = finding.speed / *middle;
      if (share >= kSlower) continue;
      finding.level = std::max(finding.level, share < kMuchSlower ? Finding::Level::kFail : Finding::Level::kWarn);
      finding.what += fmt::format(": {:.2f} of the median of {} nodes", share, all.size());
      finding.advice = finding.check == "store" ? kSlowStore : kSlowMachine;
      finding.limit = fmt::format("{} of its peers' speed", kMuchSlower);
    }
  }
}

}  // namespace millrace::jobs
