#include "millrace/collectives/direct_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "millrace/collectives/combine.h"
#include "millrace/collectives/operation_label.h"

namespace millrace::collectives {
namespace {

/// Bytes of a part that are under way at a time in a reduction: large enough for a network's full speed, and bounds the
/// memory for what other ranks send, 2 · (ranks - 1) pieces.
constexpr std::int64_t kPieceBytes = 1 << 20;
/// Broadcasts of fewer bytes go from the root to all ranks at once: there the number of messages counts, not the bytes.
constexpr std::int64_t kScatterBytes = 64 << 10;

std::int64_t ElementBytes(const Elements& elements) { return static_cast<std::int64_t>(SizeOf(elements.type)); }
MutableByteSpan BytesAt(const Elements& elements, std::int64_t begin, std::int64_t count) {
  const std::int64_t element = ElementBytes(elements);
  return {elements.begin() + begin * element, static_cast<std::size_t>(count * element)};
}
MutableByteSpan AllBytes(const Elements& elements) { return {elements.begin(), elements.bytes()}; }

/// Messages under way that are waited for together. Empty messages are not sent.
class Batch {
 public:
  explicit Batch(PeerLink& link) : link_(link) {}
  Status Send(ByteSpan bytes, int to) {
    if (!bytes.empty()) transfers_.push_back(MR_TRY(link_.StartSend(bytes, to)));
    return {};
  }
  Status Receive(MutableByteSpan into, int from) {
    if (!into.empty()) transfers_.push_back(MR_TRY(link_.StartReceive(into, from)));
    return {};
  }
  Status Wait() {
    for (const auto& transfer : transfers_) MR_TRY(transfer->Wait());
    transfers_.clear();
    return {};
  }

 private:
  PeerLink& link_;
  std::vector<std::unique_ptr<PeerLink::Transfer>> transfers_;
};

template <class T>
MutableByteSpan ObjectBytes(T& object) {
  return {reinterpret_cast<std::byte*>(&object), sizeof object};
}

/// Tells every rank what this one has started, and compares it with what they have.
Status Agree(PeerLink& link, OperationLabel label) {
  std::vector<OperationLabel> labels(static_cast<std::size_t>(link.size()));
  Batch batch(link);
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer == link.rank()) continue;
    MR_TRY(batch.Receive(ObjectBytes(labels[peer]), peer));
    MR_TRY(batch.Send(ObjectBytes(label), peer));
  }
  MR_TRY(batch.Wait());
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer != link.rank()) MR_TRY(CompareLabels(label, link.NameOf(peer), labels[peer]));
  }
  return {};
}

/// The division of elements between ranks. All parts but the last ones are equal.
struct Division {
  std::int64_t elements, part;
  std::int64_t Begin(int rank) const { return std::min(elements, part * rank); }
  std::int64_t Elements(int rank) const { return std::clamp<std::int64_t>(elements - part * rank, 0, part); }
};
Division DivideBetween(int ranks, std::int64_t elements) { return {elements, (elements + ranks - 1) / ranks}; }

/// Combines this rank's part of the ranks' `all` into `mine`.
Status ScatterReduced(PeerLink& link, const Elements& all, Division division, MutableByteSpan mine,
                      Reduction reduction) {
  const int rank = link.rank(), size = link.size();
  const auto element = ElementBytes(all);
  const std::int64_t most = std::min(division.part, kPieceBytes / element);
  if (most == 0) return {};
  const std::int64_t steps = (division.part + most - 1) / most;
  const auto elements_of = [&](int part, std::int64_t step) {
    return std::clamp<std::int64_t>(division.Elements(part) - step * most, 0, most);
  };
  // Two sets of pieces: one is combined while the other arrives.
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(2 * size * most * element));
  const Elements arrived(memory.get(), all.type, 2 * size * most);
  Batch batches[] = {Batch(link), Batch(link)};
  const auto piece = [&](std::int64_t step, int peer) {
    return BytesAt(arrived, ((step % 2) * size + peer) * most, elements_of(rank, step));
  };
  const auto start = [&](std::int64_t step) -> Status {
    Batch& batch = batches[step % 2];
    for (int offset = 1; offset < size; ++offset) {  // each rank begins with another peer
      const int to = (rank + offset) % size, from = (rank + size - offset) % size;
      MR_TRY(batch.Receive(piece(step, from), from));
      MR_TRY(batch.Send(BytesAt(all, division.Begin(to) + step * most, elements_of(to, step)), to));
    }
    return {};
  };
  std::vector<const void*> sources(static_cast<std::size_t>(size));
  MR_TRY(start(0));
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) MR_TRY(start(step + 1));
    MR_TRY(batches[step % 2].Wait());
    for (int peer = 0; peer < size; ++peer) {
      sources[peer] =
          peer == rank ? BytesAt(all, division.Begin(rank) + step * most, 0).data() : piece(step, peer).data();
    }
    Combine(all.type, reduction, mine.data() + step * most * element, sources, elements_of(rank, step));
  }
  return {};
}

/// Sends this rank's part of `all` to every other rank and receives theirs.
Status GatherParts(PeerLink& link, const Elements& all, Division division) {
  const int rank = link.rank(), size = link.size();
  Batch batch(link);
  for (int offset = 1; offset < size; ++offset) {
    const int to = (rank + offset) % size, from = (rank + size - offset) % size;
    MR_TRY(batch.Receive(BytesAt(all, division.Begin(from), division.Elements(from)), from));
    MR_TRY(batch.Send(BytesAt(all, division.Begin(rank), division.Elements(rank)), to));
  }
  return batch.Wait();
}

}  // namespace

Status DirectAllReduce(PeerLink& link, const Elements& elements, Reduction reduction) {
  MR_TRY(Agree(link, LabelOf(OperationKind::kAllReduce, elements, static_cast<std::uint32_t>(reduction))));
  const Division division = DivideBetween(link.size(), elements.count);
  const MutableByteSpan mine = BytesAt(elements, division.Begin(link.rank()), division.Elements(link.rank()));
  MR_TRY(ScatterReduced(link, elements, division, mine, reduction));
  return GatherParts(link, elements, division);
}

Status DirectAllGather(PeerLink& link, const Elements& all, const Elements& mine) {
  MR_TRY(Agree(link, LabelOf(OperationKind::kAllGather, mine)));
  const MutableByteSpan own = BytesAt(all, link.rank() * mine.count, mine.count);
  if (!own.empty() && own.data() != mine.data) std::memcpy(own.data(), mine.data, own.size());
  return GatherParts(link, all, {all.count, mine.count});
}

Status DirectReduceScatter(PeerLink& link, const Elements& mine, const Elements& all, Reduction reduction) {
  MR_TRY(Agree(link, LabelOf(OperationKind::kReduceScatter, mine, static_cast<std::uint32_t>(reduction))));
  return ScatterReduced(link, all, {all.count, mine.count}, AllBytes(mine), reduction);
}

Status DirectBroadcast(PeerLink& link, const Elements& elements, int root) {
  MR_TRY(Agree(link, LabelOf(OperationKind::kBroadcast, elements, static_cast<std::uint32_t>(root))));
  const int rank = link.rank(), size = link.size();
  const bool scatters = size > 2 && static_cast<std::int64_t>(elements.bytes()) >= kScatterBytes;
  const Division division = scatters ? DivideBetween(size, elements.count) : Division{elements.count, elements.count};
  const auto part = [&](int of) {
    return scatters ? BytesAt(elements, division.Begin(of), division.Elements(of)) : AllBytes(elements);
  };
  Batch batch(link);
  for (int peer = 0; peer < size; ++peer) {
    if (rank == root && peer != root) MR_TRY(batch.Send(part(peer), peer));
  }
  if (rank != root) MR_TRY(batch.Receive(part(rank), root));
  MR_TRY(batch.Wait());
  return scatters ? GatherParts(link, elements, division) : Status();
}

Status DirectSend(PeerLink& link, const Elements& elements, int to) {
  OperationLabel label = LabelOf(OperationKind::kMessage, elements);
  Batch batch(link);
  MR_TRY(batch.Send(ObjectBytes(label), to));
  MR_TRY(batch.Send(AllBytes(elements), to));
  return batch.Wait();
}

Status DirectReceive(PeerLink& link, const Elements& elements, int from) {
  OperationLabel label{};
  Batch batch(link);
  MR_TRY(batch.Receive(ObjectBytes(label), from));
  MR_TRY(batch.Wait());
  MR_TRY(CompareLabels(LabelOf(OperationKind::kMessage, elements), link.NameOf(from), label));
  MR_TRY(batch.Receive(AllBytes(elements), from));
  return batch.Wait();
}

}  // namespace millrace::collectives
