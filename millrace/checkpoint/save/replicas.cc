#include "millrace/checkpoint/save/replicas.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "millrace/base/json.h"
#include "millrace/checkpoint/save/result_message.h"

namespace millrace::checkpoint {
namespace {

/// A slice and the rank that holds it.
struct Holding {
  const HeldSlice* slice = nullptr;
  std::size_t rank = 0, index = 0;  ///< index: of the slice among those of the rank
};
auto Identity(const HeldSlice& slice) { return std::tie(slice.name, slice.box, slice.begin, slice.elements); }

std::uint64_t BytesOf(const HeldSlice& slice) { return slice.elements * DTypeBytes(slice.meta.dtype); }

/// Assigns slices to their holders, so that the loads of all ranks become equal. Call Give for the largest slices
/// first.
class ReplicaBalancer {
 public:
  ReplicaBalancer(std::size_t ranks, std::uint64_t least_bytes)
      : least_bytes_(std::max<std::uint64_t>(least_bytes, 1)), loads_(ranks), shares_(ranks) {}

  /// Splits a slice among its least loaded holders. `holders` all hold the same slice. Reorders them.
  void Give(std::span<Holding> holders) {
    const HeldSlice& slice = *holders[0].slice;
    const std::uint64_t bytes = BytesOf(slice);
    const std::size_t wanted = std::clamp<std::uint64_t>(bytes / least_bytes_, 1, holders.size());
    std::partial_sort(holders.begin(), holders.begin() + static_cast<long>(wanted), holders.end(),
                      [this](const Holding& a, const Holding& b) {
                        return std::tie(loads_[a.rank], a.rank) < std::tie(loads_[b.rank], b.rank);
                      });
    const std::size_t takers = Takers(holders.first(wanted), bytes);
    double level = static_cast<double>(bytes);
    for (std::size_t i = 0; i < takers; ++i) level += static_cast<double>(loads_[holders[i].rank]);
    level /= static_cast<double>(takers);
    double given = 0;
    for (std::uint64_t i = 0, begin = 0; i < takers; ++i) {
      given += level - static_cast<double>(loads_[holders[i].rank]);
      const double part = bytes == 0 ? 0 : given / static_cast<double>(bytes) * static_cast<double>(slice.elements);
      const std::uint64_t end =
          i + 1 == takers
              ? slice.elements
              : std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::llround(part)), begin, slice.elements);
      Take(holders[i], begin, end - begin);
      begin = end;
    }
  }
  std::vector<std::vector<SliceShare>> Finish() && { return std::move(shares_); }

 private:
  /// Returns how many of the least loaded holders take a share. These holders have equal loads afterwards, and no other
  /// holder has less. `holders` are sorted by load.
  std::size_t Takers(std::span<const Holding> holders, std::uint64_t bytes) const {
    std::size_t takers = 1;
    for (std::uint64_t room = 0; takers < holders.size(); ++takers) {
      room += takers * (loads_[holders[takers].rank] - loads_[holders[takers - 1].rank]);
      if (room >= bytes) break;
    }
    return takers;
  }
  void Take(const Holding& holder, std::uint64_t begin, std::uint64_t elements) {
    // A slice without elements has one share too, so that the manifest names its tensor.
    if (elements == 0 && holder.slice->elements > 0) return;
    shares_[holder.rank].push_back({holder.index, begin, elements});
    loads_[holder.rank] += elements * DTypeBytes(holder.slice->meta.dtype);
  }

  const std::uint64_t least_bytes_;
  std::vector<std::uint64_t> loads_;  ///< bytes of each rank so far
  std::vector<std::vector<SliceShare>> shares_;
};

std::string EncodeHeld(const std::vector<SaveSlice>& slices) {
  Json list = Json::array();
  for (const SaveSlice& slice : slices) {
    list.push_back({slice.name, DTypeName(slice.meta.dtype), slice.meta.shape, slice.box.offsets, slice.box.lengths,
                    slice.begin, slice.bytes.size() / DTypeBytes(slice.meta.dtype)});
  }
  return DumpJson(list);
}
/// REQUIRES: `text` is the result of EncodeHeld on another rank.
Result<std::vector<HeldSlice>> DecodeHeld(const std::string& text) {
  std::vector<HeldSlice> held;
  const Json list = MR_TRY(ParseJson(text, "what a rank holds"));
  for (const Json& json : list) {
    HeldSlice slice{.name = json[0].get<std::string>()};
    slice.meta.dtype = MR_TRY(ParseDType(json[1].get<std::string>()));
    slice.meta.shape = json[2].get<std::vector<std::int64_t>>();
    slice.box = {json[3].get<std::vector<std::uint64_t>>(), json[4].get<std::vector<std::uint64_t>>()};
    slice.begin = json[5].get<std::uint64_t>();
    slice.elements = json[6].get<std::uint64_t>();
    held.push_back(std::move(slice));
  }
  return held;
}

/// Returns rank 0's plan as JSON: for each rank a flat list of slice, begin, elements.
Result<std::string> Plan(const std::vector<std::string>& gathered) {
  std::vector<std::vector<HeldSlice>> held;
  for (const std::string& text : gathered) held.push_back(MR_TRY(DecodeHeld(text)));
  Json plan = Json::array();
  for (const auto& shares : BalanceReplicas(held)) {
    Json mine = Json::array();
    for (const SliceShare& share : shares) {
      mine.push_back(share.slice);
      mine.push_back(share.begin);
      mine.push_back(share.elements);
    }
    plan.push_back(std::move(mine));
  }
  return DumpJson(plan);
}

}  // namespace

std::vector<std::vector<SliceShare>> BalanceReplicas(const std::vector<std::vector<HeldSlice>>& held,
                                                     std::uint64_t least_bytes) {
  std::vector<Holding> holdings;
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    for (std::size_t index = 0; index < held[rank].size(); ++index)
      holdings.push_back({&held[rank][index], rank, index});
  std::sort(holdings.begin(), holdings.end(), [](const Holding& a, const Holding& b) {
    const auto x = Identity(*a.slice), y = Identity(*b.slice);
    return x != y ? x < y : std::tie(a.rank, a.index) < std::tie(b.rank, b.index);
  });
  std::vector<std::span<Holding>> groups;
  for (std::size_t first = 0, last = 0; first < holdings.size(); first = last) {
    while (last < holdings.size() && Identity(*holdings[last].slice) == Identity(*holdings[first].slice)) ++last;
    groups.push_back(std::span(holdings).subspan(first, last - first));
  }
  // First the slices that one rank holds, since nothing can be chosen there. Then the large slices, so that the small
  // ones level the loads.
  std::sort(groups.begin(), groups.end(), [](std::span<Holding> a, std::span<Holding> b) {
    const bool many_a = a.size() > 1, many_b = b.size() > 1;
    if (many_a != many_b) return many_b;
    const std::uint64_t bytes_a = BytesOf(*a[0].slice), bytes_b = BytesOf(*b[0].slice);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a.data() < b.data();
  });
  ReplicaBalancer balancer(held.size(), least_bytes);
  for (std::span<Holding> group : groups) balancer.Give(group);
  return std::move(balancer).Finish();
}

Result<std::vector<SaveSlice>> ShareReplicas(RankExchange& group, const std::vector<SaveSlice>& held) {
  const auto gathered = MR_TRY(group.Gather(EncodeHeld(held)));
  // An error of rank 0 is an error of all ranks.
  std::string message;
  if (group.rank() == 0) message = EncodeResult(Plan(gathered));
  const auto text = DecodeResult(MR_TRY(group.Broadcast(std::move(message))));
  if (!text) return Fail(Code::kInternal, "distributing the slices of a save: {}", text.error().ToString());
  const Json plan = MR_TRY(ParseJson(*text, "the plan of rank 0"));
  const Json& mine = plan[static_cast<std::size_t>(group.rank())];
  std::vector<SaveSlice> slices;
  for (std::size_t i = 0; i + 2 < mine.size(); i += 3) {
    SaveSlice slice = held.at(mine[i].get<std::size_t>());
    const std::uint64_t begin = mine[i + 1].get<std::uint64_t>(), elements = mine[i + 2].get<std::uint64_t>();
    const std::uint64_t element = DTypeBytes(slice.meta.dtype);
    slice.begin += begin;
    slice.bytes = slice.bytes.subspan(begin * element, elements * element);
    slices.push_back(std::move(slice));
  }
  return slices;
}

}  // namespace millrace::checkpoint
