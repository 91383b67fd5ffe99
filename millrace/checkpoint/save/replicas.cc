#include "millrace/checkpoint/save/replicas.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "millrace/checkpoint/exchange/result_message.h"

namespace millrace::checkpoint {
namespace {

/// Where one piece is held.
struct Holding {
  const HeldPiece* piece = nullptr;
  std::size_t rank = 0, index = 0;
};
auto Identity(const HeldPiece& piece) { return std::tie(piece.name, piece.box, piece.begin, piece.elements); }

std::uint64_t BytesOf(const HeldPiece& piece) { return piece.elements * DTypeBytes(piece.meta.dtype); }

/// Hands out pieces, the largest first, to those who have least.
class Balancer {
 public:
  Balancer(std::size_t ranks, std::uint64_t least_bytes)
      : least_bytes_(std::max<std::uint64_t>(least_bytes, 1)), loads_(ranks), shares_(ranks) {}

  /// `holders` all hold the same piece. Reorders them.
  void Give(std::span<Holding> holders) {
    const HeldPiece& piece = *holders[0].piece;
    const std::uint64_t bytes = BytesOf(piece);
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
      const double part = bytes == 0 ? 0 : given / static_cast<double>(bytes) * static_cast<double>(piece.elements);
      const std::uint64_t end =
          i + 1 == takers
              ? piece.elements
              : std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::llround(part)), begin, piece.elements);
      Take(holders[i], begin, end - begin);
      begin = end;
    }
  }
  std::vector<std::vector<PieceShare>> Finish() && { return std::move(shares_); }

 private:
  /// How many of the least loaded end up at one level when they share so many bytes, as water does.
  std::size_t Takers(std::span<const Holding> holders, std::uint64_t bytes) const {
    std::size_t takers = 1;
    for (std::uint64_t room = 0; takers < holders.size(); ++takers) {
      room += takers * (loads_[holders[takers].rank] - loads_[holders[takers - 1].rank]);
      if (room >= bytes) break;
    }
    return takers;
  }
  void Take(const Holding& holder, std::uint64_t begin, std::uint64_t elements) {
    // A tensor without elements is named once all the same.
    if (elements == 0 && holder.piece->elements > 0) return;
    shares_[holder.rank].push_back({holder.index, begin, elements});
    loads_[holder.rank] += elements * DTypeBytes(holder.piece->meta.dtype);
  }

  const std::uint64_t least_bytes_;
  std::vector<std::uint64_t> loads_;  ///< bytes of each rank so far
  std::vector<std::vector<PieceShare>> shares_;
};

std::string EncodeHeld(const std::vector<SavePiece>& pieces) {
  Json list = Json::array();
  for (const SavePiece& piece : pieces) {
    list.push_back({piece.name, DTypeName(piece.meta.dtype), piece.meta.shape, piece.box.offsets, piece.box.lengths,
                    piece.begin, piece.bytes.size() / DTypeBytes(piece.meta.dtype)});
  }
  return DumpJson(list);
}
/// Trusts its form: it comes from EncodeHeld of the same program.
Result<std::vector<HeldPiece>> DecodeHeld(const std::string& text) {
  std::vector<HeldPiece> held;
  const Json list = MR_TRY(ParseJson(text, "what a rank holds"));
  for (const Json& json : list) {
    HeldPiece piece{.name = json[0].get<std::string>()};
    piece.meta.dtype = MR_TRY(ParseDType(json[1].get<std::string>()));
    piece.meta.shape = json[2].get<std::vector<std::int64_t>>();
    piece.box = {json[3].get<std::vector<std::uint64_t>>(), json[4].get<std::vector<std::uint64_t>>()};
    piece.begin = json[5].get<std::uint64_t>();
    piece.elements = json[6].get<std::uint64_t>();
    held.push_back(std::move(piece));
  }
  return held;
}

/// Rank 0's answer to all: for each rank a flat list of piece, begin, elements.
Result<std::string> Plan(const std::vector<std::string>& gathered) {
  std::vector<std::vector<HeldPiece>> held;
  for (const std::string& text : gathered) held.push_back(MR_TRY(DecodeHeld(text)));
  Json plan = Json::array();
  for (const auto& shares : BalanceReplicas(held)) {
    Json mine = Json::array();
    for (const PieceShare& share : shares) {
      mine.push_back(share.piece);
      mine.push_back(share.begin);
      mine.push_back(share.elements);
    }
    plan.push_back(std::move(mine));
  }
  return DumpJson(plan);
}

}  // namespace

std::vector<std::vector<PieceShare>> BalanceReplicas(const std::vector<std::vector<HeldPiece>>& held,
                                                     std::uint64_t least_bytes) {
  std::vector<Holding> holdings;
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    for (std::size_t index = 0; index < held[rank].size(); ++index)
      holdings.push_back({&held[rank][index], rank, index});
  std::sort(holdings.begin(), holdings.end(), [](const Holding& a, const Holding& b) {
    const auto x = Identity(*a.piece), y = Identity(*b.piece);
    return x != y ? x < y : std::tie(a.rank, a.index) < std::tie(b.rank, b.index);
  });
  std::vector<std::span<Holding>> groups;
  for (std::size_t first = 0, last = 0; first < holdings.size(); first = last) {
    while (last < holdings.size() && Identity(*holdings[last].piece) == Identity(*holdings[first].piece)) ++last;
    groups.push_back(std::span(holdings).subspan(first, last - first));
  }
  // What only one rank has is given; then the large ones, so that small ones level what is left.
  std::sort(groups.begin(), groups.end(), [](std::span<Holding> a, std::span<Holding> b) {
    const bool many_a = a.size() > 1, many_b = b.size() > 1;
    if (many_a != many_b) return many_b;
    const std::uint64_t bytes_a = BytesOf(*a[0].piece), bytes_b = BytesOf(*b[0].piece);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a.data() < b.data();
  });
  Balancer balancer(held.size(), least_bytes);
  for (std::span<Holding> group : groups) balancer.Give(group);
  return std::move(balancer).Finish();
}

Result<std::vector<SavePiece>> ShareReplicas(RankExchange& group, const std::vector<SavePiece>& held) {
  const auto gathered = MR_TRY(group.Gather(EncodeHeld(held)));
  // An error of rank 0 is everyone's.
  std::string message;
  if (group.rank() == 0) message = EncodeResult(Plan(gathered));
  const auto text = DecodeResult(MR_TRY(group.Broadcast(std::move(message))));
  if (!text) return Fail(Code::kInternal, "sharing out what is to be saved: {}", text.error().ToString());
  const Json plan = MR_TRY(ParseJson(*text, "the plan of rank 0"));
  const Json& mine = plan[static_cast<std::size_t>(group.rank())];
  std::vector<SavePiece> pieces;
  for (std::size_t i = 0; i + 2 < mine.size(); i += 3) {
    SavePiece piece = held.at(mine[i].get<std::size_t>());
    const std::uint64_t begin = mine[i + 1].get<std::uint64_t>(), elements = mine[i + 2].get<std::uint64_t>();
    const std::uint64_t element = DTypeBytes(piece.meta.dtype);
    piece.begin += begin;
    piece.bytes = piece.bytes.subspan(begin * element, elements * element);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace millrace::checkpoint
