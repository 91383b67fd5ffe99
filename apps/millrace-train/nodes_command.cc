#include "apps/millrace-train/nodes_command.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "apps/common/output.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/format/provenance.h"
#include "millrace/collectives/connect.h"
#include "millrace/engine/runtime.h"
#include "millrace/jobs/health/peers.h"
#include "millrace/train/ranks/link_check.h"

namespace millrace {
namespace {

using jobs::Finding;
using jobs::Findings;

/// The slowest machine's checks take some seconds.
constexpr auto kMeetingTime = std::chrono::minutes(2);

Result<Findings> ParseFindings(std::string_view text) {
  const Json json = MR_TRY(ParseJson(text, "the findings of a machine"));
  Findings findings;
  for (const Json& finding : json) findings.push_back(MR_TRY(jobs::FindingFromJson(finding)));
  return findings;
}

/// Gives all ranks the text of each.
Result<std::vector<std::string>> GatherTexts(engine::Collective& world, const std::string& text) {
  const at::Tensor longest = at::scalar_tensor(static_cast<std::int64_t>(text.size()), at::kLong);
  MR_TRY(world.AllReduce(longest, engine::Reduction::kMax));
  const std::int64_t size = longest.item<std::int64_t>();
  const at::Tensor mine = at::full({size}, ' ', at::kByte), all = at::zeros({size * world.size()}, at::kByte);
  std::ranges::copy(text, mine.data_ptr<std::uint8_t>());
  MR_TRY(world.AllGather(all, mine));
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(all.data_ptr<std::uint8_t>()) + rank * size;
    texts.emplace_back(begin, static_cast<std::size_t>(size));
  }
  return texts;
}

/// Returns the rank that speaks for the machine of `rank`: its first one.
int FirstRankOf(const train::NetworkFigures& figures, int rank) {
  const auto& nodes = figures.nodes;
  return static_cast<int>(std::ranges::find(nodes, nodes[static_cast<std::size_t>(rank)]) - nodes.begin());
}

/// What the links of this machine are like.
Finding LinksFinding(const train::NetworkFigures& figures, int rank) {
  Finding finding{.check = "links", .limit = "half of the others' bandwidth, 5 times their latency"};
  const int first = FirstRankOf(figures, rank);
  double best = 0, worst = 0, latency = 0;
  int links = 0;
  for (const train::LinkFigures& link : figures.links) {
    if (link.first != first && link.second != first) continue;
    best = std::max(best, link.bytes_per_s);
    worst = links == 0 ? link.bytes_per_s : std::min(worst, link.bytes_per_s);
    latency = std::max(latency, link.latency_s);
    ++links;
  }
  if (links == 0) {
    finding.what = "not measured: all ranks are on one machine";
    finding.limit.clear();
    return finding;
  }
  finding.what = fmt::format("{} to other machines: {:.0f} to {:.0f} MB/s, up to {:.0f} µs one way", links, worst / 1e6,
                             best / 1e6, latency * 1e6);
  const std::string name = fmt::format("(rank {})", first);
  for (const std::string& sentence : train::SlowLinks(figures)) {
    if (sentence.find(name) == std::string::npos) continue;
    finding.level = Finding::Level::kWarn;
    finding.what += "; " + sentence;
  }
  for (const train::SlowMachine& slow : train::SlowMachines(figures)) {
    if (slow.rank != first) continue;
    finding.level = Finding::Level::kFail;
    finding.what = slow.sentence;
    finding.advice = "leave this machine out, or repair it: a job with run.spares does so by itself";
  }
  return finding;
}

Result<Json> CompareNodes(const NodesArguments& arguments, std::unique_ptr<engine::Collective>& group) {
  const collectives::RankInfo info = MR_TRY(collectives::RankInfo::FromEnvironment());
  engine::ConfigureRuntime(1);
  group = MR_TRY(collectives::ConnectRanks(info, kMeetingTime));
  const std::string host = checkpoint::LocalProvenance("millrace-train", MILLRACE_VERSION).host;
  const train::NetworkFigures figures = MR_TRY(train::MeasureNetwork(*group, host, SystemClock()));
  const std::vector<std::string> texts = MR_TRY(GatherTexts(*group, arguments.findings));
  std::map<std::string, Findings> reports;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (FirstRankOf(figures, static_cast<int>(rank)) != static_cast<int>(rank)) continue;
    reports[figures.nodes[rank]] = MR_TRY(ParseFindings(texts[rank]));
  }
  jobs::CompareWithPeers(reports);
  Json nodes = Json::array();
  for (int rank = 0; rank < info.size; ++rank) {
    const std::string& node = figures.nodes[static_cast<std::size_t>(rank)];
    if (FirstRankOf(figures, rank) != rank || (info.rank != 0 && node != host)) continue;
    Json findings = Json::array();
    for (const Finding& finding : reports[node]) findings.push_back(jobs::ToJson(finding));
    findings.push_back(jobs::ToJson(LinksFinding(figures, rank)));
    nodes.push_back({{"node", node}, {"findings", std::move(findings)}});
  }
  MR_TRY(group->Barrier());
  return Json{{"rank", info.rank}, {"nodes", std::move(nodes)}};
}

}  // namespace

CLI::App* AddNodesCommand(CLI::App& app, NodesArguments& arguments) {
  CLI::App* command = app.add_subcommand("nodes", "Compare the machines of a job, and measure the links between them");
  command->add_option("--findings", arguments.findings, "What was found on this machine, as a list in JSON")
      ->default_val("[]");
  return command;
}

int PrintNodes(const NodesArguments& arguments, std::unique_ptr<engine::Collective>& group) {
  const auto compared = CompareNodes(arguments, group);
  cli::Print("{}\n", DumpJson(compared ? *compared : Json{{"error", compared.error().ToString()}}));
  return compared ? 0 : ToExitStatus(compared.error().code());
}

}  // namespace millrace
