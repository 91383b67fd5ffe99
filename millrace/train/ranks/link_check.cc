#include "millrace/train/ranks/link_check.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace millrace::train {
namespace {

constexpr int kMessages = 8, kTransfers = 3;         // the fastest of them was not delayed by other work
constexpr std::int64_t kBytes = 4 << 20;             // enough that latency does not count on networks up to 10 GB/s
constexpr int kMaxRounds = 63;                       // about a second on a network of 1 GB/s
constexpr double kSlowShare = 0.5;                   // of the median bandwidth
constexpr double kSlowLatency = 5, kNoticed = 1e-3;  // times the median; seconds
constexpr std::size_t kFewestLinks = 3;              // and machines
constexpr std::int64_t kNameBytes = 64;

/// Returns the time of the fastest of some calls.
template <class Call>
Result<double> Fastest(int calls, const Clock& clock, Call call) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < calls; ++i) {
    const TimePoint begun = clock.Now();
    MR_TRY(call());
    best = std::min(best, SecondsOf(clock.Now() - begun));
  }
  return best;
}

/// Sends a tensor to `peer` and gets it back, or the other way round.
Status ToAndFro(engine::Collective& group, const at::Tensor& tensor, int peer) {
  if (group.rank() < peer) {
    MR_TRY(group.Send(tensor, peer));
    return group.Receive(tensor, peer);
  }
  MR_TRY(group.Receive(tensor, peer));
  return group.Send(tensor, peer);
}

/// Returns with whom `rank` exchanges in a round: the circle method for tournaments, where everybody meets everybody
/// once in `teams` - 1 rounds. `teams` is even.
int PartnerOf(int rank, int round, int teams) {
  const int circle = teams - 1;
  if (rank == circle) return round;
  if (rank == round) return circle;
  return (2 * round - rank + circle) % circle;
}

Result<std::vector<std::string>> GatherNames(engine::Collective& world, const std::string& name) {
  const at::Tensor mine = at::zeros({kNameBytes}, at::kByte), all = at::zeros({kNameBytes * world.size()}, at::kByte);
  std::ranges::copy(name.substr(0, kNameBytes), mine.data_ptr<std::uint8_t>());
  MR_TRY(world.AllGather(all, mine));
  std::vector<std::string> names;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* text = reinterpret_cast<const char*>(all.data_ptr<std::uint8_t>()) + rank * kNameBytes;
    names.emplace_back(text, ::strnlen(text, kNameBytes));
  }
  return names;
}

/// Measures the links of the first ranks of the machines. Returns a row [first, second, latency, bandwidth] for each
/// link; both ranks of a link have it.
Status MeasureLinks(engine::Collective& leaders, const std::vector<int>& in_job, const Clock& clock,
                    std::vector<LinkFigures>& links) {
  const int teams = leaders.size() + leaders.size() % 2;
  const at::Tensor message = at::zeros({1}, at::kByte), block = at::zeros({kBytes}, at::kByte);
  for (int round = 0; round < std::min(teams - 1, kMaxRounds); ++round) {
    const int peer = PartnerOf(leaders.rank(), round, teams);
    if (peer >= leaders.size()) continue;
    LinkFigures link{.first = in_job[static_cast<std::size_t>(std::min(peer, leaders.rank()))],
                     .second = in_job[static_cast<std::size_t>(std::max(peer, leaders.rank()))]};
    MR_TRY(ToAndFro(leaders, message, peer));  // connects
    link.latency_s = MR_TRY(Fastest(kMessages, clock, [&] { return ToAndFro(leaders, message, peer); })) / 2;
    const double seconds = MR_TRY(Fastest(kTransfers, clock, [&] { return ToAndFro(leaders, block, peer); })) / 2;
    link.bytes_per_s = static_cast<double>(kBytes) / std::max(seconds, 1e-9);
    // The second rank's clock begins before the first rank sends, so the first rank's figures count.
    if (leaders.rank() < peer) links.push_back(link);
  }
  return {};
}

/// Gives all ranks the links that any of them has measured.
Result<std::vector<LinkFigures>> ShareLinks(engine::Collective& world, const std::vector<LinkFigures>& mine) {
  const at::Tensor count = at::scalar_tensor(static_cast<std::int64_t>(mine.size()), at::kLong);
  MR_TRY(world.AllReduce(count, engine::Reduction::kMax));
  const std::int64_t most = count.item<std::int64_t>();
  const at::Tensor rows = at::zeros({most, 4}, at::kDouble), all = at::zeros({world.size() * most, 4}, at::kDouble);
  auto* row = rows.data_ptr<double>();
  for (const LinkFigures& link : mine) {
    *row++ = link.first;
    *row++ = link.second;
    *row++ = link.latency_s;
    *row++ = link.bytes_per_s;
  }
  MR_TRY(world.AllGather(all, rows));
  std::vector<LinkFigures> links;
  const auto* read = all.data_ptr<double>();
  for (std::int64_t i = 0; i < all.size(0); ++i, read += 4) {
    if (read[3] == 0) continue;  // fills up
    links.push_back({.first = static_cast<int>(read[0]),
                     .second = static_cast<int>(read[1]),
                     .latency_s = read[2],
                     .bytes_per_s = read[3]});
  }
  return links;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string Microseconds(double seconds) { return fmt::format("{:.0f} µs", seconds * 1e6); }
std::string Megabytes(double rate) { return fmt::format("{:.0f} MB/s", rate / 1e6); }
std::string NameOf(const NetworkFigures& figures, int rank) {
  return fmt::format("{} (rank {})", figures.nodes[static_cast<std::size_t>(rank)], rank);
}
bool IsLate(double latency, double median) { return latency > kSlowLatency * median && latency > kNoticed; }

}  // namespace

Result<NetworkFigures> MeasureNetwork(engine::Collective& world, const std::string& node, const Clock& clock) {
  NetworkFigures figures{.nodes = MR_TRY(GatherNames(world, node)), .links = {}};
  std::vector<int> leaders;
  std::set<std::string> seen;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (seen.insert(figures.nodes[static_cast<std::size_t>(rank)]).second) leaders.push_back(rank);
  }
  if (leaders.size() < 2) return figures;
  std::vector<LinkFigures> mine;
  if (std::ranges::find(leaders, world.rank()) != leaders.end()) {
    // A group of their own: its threads end with it.
    const auto group = MR_TRY(world.Split("links", leaders));
    MR_TRY(MeasureLinks(*group, leaders, clock, mine));
  }
  figures.links = MR_TRY(ShareLinks(world, mine));
  const at::Tensor message = at::zeros({1}, at::kByte), block = at::zeros({kBytes}, at::kByte);
  const at::Tensor times = at::zeros({2}, at::kDouble);
  times[0] = MR_TRY(Fastest(kMessages, clock, [&] { return world.AllReduce(message, engine::Reduction::kMax); }));
  times[1] = MR_TRY(Fastest(kTransfers, clock, [&] { return world.AllReduce(block, engine::Reduction::kMax); }));
  MR_TRY(world.AllReduce(times, engine::Reduction::kMax));
  figures.all_reduce_latency_s = times[0].item<double>();
  figures.all_reduce_bytes_per_s = static_cast<double>(kBytes) / std::max(times[1].item<double>(), 1e-9);
  return figures;
}

std::vector<std::string> SlowLinks(const NetworkFigures& figures) {
  if (figures.links.size() < kFewestLinks) return {};
  std::vector<double> latencies, rates;
  for (const LinkFigures& link : figures.links) {
    latencies.push_back(link.latency_s);
    rates.push_back(link.bytes_per_s);
  }
  const double latency = Median(latencies), rate = Median(rates);
  std::vector<std::string> sentences;
  for (const LinkFigures& link : figures.links) {
    if (!IsLate(link.latency_s, latency) && link.bytes_per_s >= kSlowShare * rate) continue;
    sentences.push_back(fmt::format("the link of {} and {} is slow: {} and {}, the median is {} and {}",
                                    NameOf(figures, link.first), NameOf(figures, link.second),
                                    Megabytes(link.bytes_per_s), Microseconds(link.latency_s), Megabytes(rate),
                                    Microseconds(latency)));
  }
  return sentences;
}

std::vector<SlowMachine> SlowMachines(const NetworkFigures& figures) {
  std::map<int, LinkFigures> best;  // of each machine's links, by its first rank
  for (const LinkFigures& link : figures.links) {
    for (const int rank : {link.first, link.second}) {
      LinkFigures& own = best.try_emplace(rank, link).first->second;
      own.latency_s = std::min(own.latency_s, link.latency_s);
      own.bytes_per_s = std::max(own.bytes_per_s, link.bytes_per_s);
    }
  }
  if (best.size() < kFewestLinks) return {};
  std::vector<double> latencies, rates;
  for (const auto& [rank, link] : best) {
    latencies.push_back(link.latency_s);
    rates.push_back(link.bytes_per_s);
  }
  const double latency = Median(latencies), rate = Median(rates);
  std::vector<SlowMachine> slow;
  for (const auto& [rank, link] : best) {
    if (!IsLate(link.latency_s, latency) && link.bytes_per_s >= kSlowShare * rate) continue;
    slow.push_back({rank, fmt::format("all links of {} are slow: at best {} and {}, the median of {} machines is {} "
                                      "and {}: look at its network card, cable and switch port",
                                      NameOf(figures, rank), Megabytes(link.bytes_per_s), Microseconds(link.latency_s),
                                      best.size(), Megabytes(rate), Microseconds(latency))});
  }
  return slow;
}

}  // namespace millrace::train
