#include "millrace/collectives/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/process/cores.h"
#include "millrace/collectives/combine.h"
#include "millrace/collectives/operation_label.h"
#include "millrace/collectives/presence.h"
#include "millrace/collectives/shared_counter.h"

namespace millrace::collectives {
namespace {

/// memcpy, also of no bytes: an empty tensor may have no address.
void CopyBytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Slots of a rank's outbox. An all-reduce has two chunks under way in each of its halves; with as many slots, no rank
/// waits for a peer that is less than a step behind.
constexpr std::uint32_t kOutboxSlots = 4;
/// The outboxes of all ranks together. They must pass through the last-level cache, and several groups must fit into
/// the /dev/shm of a container, which has 64 MiB unless configured.
constexpr std::size_t kOutboxesBytes = 8 * kMiB;
/// The largest slot takes some 60 µs to copy, many times as long as waking a peer, and two of them fit into a
/// second-level cache of 1 MiB. The smallest takes some 4 µs, about as long as waking a peer.
constexpr std::size_t kMaxSlotBytes = 512 * kKiB, kLeastSlotBytes = 32 * kKiB;

/// Slots of a channel for messages from one rank to another: one is written while the other is read.
constexpr std::uint32_t kChannelSlots = 2;
/// All channels together, for the same reason as above, and a slot's bounds: there are ranks² channels.
constexpr std::size_t kChannelsBytes = 4 * kMiB;
constexpr std::size_t kMaxChannelSlotBytes = 256 * kKiB, kLeastChannelSlotBytes = 4 * kKiB;

/// How long a rank sleeps before it looks whether its peers live. 20 wake-ups a second cost nothing, and a lost rank is
/// noticed well within a second.
constexpr Duration kLookAfter = std::chrono::milliseconds(50);
/// How long a wait polls before it sleeps: about what a sleep and its wake-up cost. Only where cores are left for the
/// threads that compute.
constexpr Duration kSpin = std::chrono::microseconds(10);

/// Tensors in a segment are aligned to cache lines.
constexpr std::size_t kAlignment = 64;

constexpr std::size_t RoundUp(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

/// Zero bytes are a valid state: no failure.
struct FailureRecord {
  enum State : std::uint32_t { kNone, kBeingWritten, kWritten };
  std::atomic<std::uint32_t> state;
  std::int32_t rank, code;
  char text[500];
};

struct alignas(kAlignment) RankState {
  SharedPresence presence;
  SharedCounter posted;  ///< slots of its outbox that the rank has filled so far
};

struct ChannelState {
  SharedCounter sent, taken;  ///< slots filled by the sender, emptied by the receiver
};

/// Where things lie in a segment.
class SegmentLayout {
 public:
  explicit SegmentLayout(int ranks)
      : ranks_(static_cast<std::size_t>(ranks)),
        slot_bytes_(SlotBytes(kOutboxesBytes / (ranks_ * kOutboxSlots), kLeastSlotBytes, kMaxSlotBytes)),
        channel_slot_bytes_(SlotBytes(kChannelsBytes / (ranks_ * ranks_ * kChannelSlots), kLeastChannelSlotBytes,
                                      kMaxChannelSlotBytes)) {
    std::size_t at = RoundUp(sizeof(FailureRecord), kAlignment);
    const auto place = [&](std::size_t bytes) { return std::exchange(at, at + RoundUp(bytes, kAlignment)); };
    rank_states_ = place(ranks_ * sizeof(RankState));
    taken_ = place(ranks_ * ranks_ * sizeof(SharedCounter));
    channel_states_ = place(ranks_ * ranks_ * sizeof(ChannelState));
    outboxes_ = place(ranks_ * kOutboxSlots * slot_stride());
    channels_ = place(ranks_ * ranks_ * kChannelSlots * channel_slot_stride());
    bytes_ = at;
  }

  std::size_t bytes() const { return bytes_; }
  /// Bytes of tensors in a slot; a label stands before them.
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t channel_slot_bytes() const { return channel_slot_bytes_; }

  FailureRecord& Failure(std::byte* base) const { return *reinterpret_cast<FailureRecord*>(base); }
  RankState& Rank(std::byte* base, int rank) const { return At<RankState>(base, rank_states_, rank); }
  /// Counts the slots of `owner`'s outbox that `reader` no longer needs.
  SharedCounter& Taken(std::byte* base, int reader, int owner) const {
    return At<SharedCounter>(base, taken_, Pair(reader, owner));
  }
  ChannelState& Channel(std::byte* base, int from, int to) const {
    return At<ChannelState>(base, channel_states_, Pair(from, to));
  }
  std::byte* OutboxSlot(std::byte* base, int owner, std::uint32_t number) const {
    return base + outboxes_ + (static_cast<std::size_t>(owner) * kOutboxSlots + number % kOutboxSlots) * slot_stride();
  }
  std::byte* ChannelSlot(std::byte* base, int from, int to, std::uint32_t number) const {
    return base + channels_ + (Pair(from, to) * kChannelSlots + number % kChannelSlots) * channel_slot_stride();
  }

 private:
  static std::size_t SlotBytes(std::size_t share, std::size_t least, std::size_t most) {
    return std::clamp(share / kAlignment * kAlignment, least, most);
  }
  template <class T>
  static T& At(std::byte* base, std::size_t offset, std::size_t index) {
    return reinterpret_cast<T*>(base + offset)[index];
  }
  std::size_t Pair(int row, int column) const { return static_cast<std::size_t>(row) * ranks_ + column; }
  std::size_t slot_stride() const { return kAlignment + slot_bytes_; }
  std::size_t channel_slot_stride() const { return kAlignment + channel_slot_bytes_; }

  const std::size_t ranks_, slot_bytes_, channel_slot_bytes_;
  std::size_t rank_states_, taken_, channel_states_, outboxes_, channels_, bytes_;  ///< offsets
};
static_assert(sizeof(OperationLabel) <= kAlignment);

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Segment> segment, GroupMembers members, Duration timeout,
                        GroupSplitter splitter)
      : segment_(std::move(segment)),
        layout_(members.size()),
        rank_(members.rank),
        size_(members.size()),
        in_job_(std::move(members.in_job)),
        timeout_(timeout),
        spin_(UsableCores() > size_ ? kSpin : Duration::zero()),
        splitter_(std::move(splitter)),
        taken_(in_job_.size()),
        channels_(in_job_.size()),
        presence_(std::in_place, layout_.Rank(base(), rank_).presence) {}
  ~SharedMemoryTransport() override {
    presence_.reset();
    WakeAll();  // peers that wait for this rank look again
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status AllReduce(const Elements& elements, Reduction reduction) override {
    const OperationLabel label = LabelOf(OperationKind::kAllReduce, elements, static_cast<std::uint32_t>(reduction));
    const auto element = static_cast<std::int64_t>(SizeOf(elements.type));
    const std::int64_t most_part = PartElements(element);
    const std::int64_t chunk = most_part * size_;
    const std::int64_t steps = std::max<std::int64_t>(1, (elements.count + chunk - 1) / chunk);
    // A step's elements, divided between the ranks. All parts but those at the end are equal.
    struct Step {
      std::int64_t begin, count, part;
      std::int64_t PartBegin(int rank) const { return begin + std::min(count, part * rank); }
      std::int64_t PartElements(int rank) const { return std::clamp<std::int64_t>(count - part * rank, 0, part); }
    };
    const auto step_at = [&](std::int64_t i) {
      const std::int64_t count = std::min(chunk, elements.count - i * chunk);
      const std::int64_t part = (count + size_ - 1) / size_;
      return Step{i * chunk, count, std::min(most_part, static_cast<std::int64_t>(RoundUp(part, kAlignment)))};
    };
    std::byte* const data = elements.begin();
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    // Three stages. In turn i, step i is copied out, step i-1 combined and step i-2 copied in.
    for (std::int64_t turn = 0; turn < steps + 2; ++turn) {
      if (turn < steps) {
        const Step step = step_at(turn);
        MR_TRY(Post(label, [&](std::byte* slot) {
          for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            CopyBytes(slot + PlaceInSlot(peer, rank_) * step.part * element, data + step.PartBegin(peer) * element,
                      static_cast<std::size_t>(step.PartElements(peer) * element));
          }
        }));
      }
      if (turn >= 1 && turn - 1 < steps) {
        const Step step = step_at(turn - 1);
        std::byte* const mine = data + step.PartBegin(rank_) * element;
        MR_TRY(TakeAll(label, [&](std::span<std::byte* const> slots) {
          for (int peer = 0; peer < size_; ++peer) {
            sources[peer] = peer == rank_ ? mine : slots[peer] + PlaceInSlot(rank_, peer) * step.part * element;
          }
          return Post(label, [&](std::byte* slot) {
            Combine(elements.type, reduction, slot, sources, step.PartElements(rank_));
            CopyBytes(mine, slot, static_cast<std::size_t>(step.PartElements(rank_) * element));
          });
        }));
      }
      if (turn >= 2) {
        const Step step = step_at(turn - 2);
        for (int peer = 0; peer < size_; ++peer) {
          if (peer == rank_) continue;
          MR_TRY(Take(label, peer, [&](const std::byte* slot) {
            CopyBytes(data + step.PartBegin(peer) * element, slot,
                      static_cast<std::size_t>(step.PartElements(peer) * element));
          }));
        }
      }
    }
    return {};
  }

  Status ReduceScatter(const Elements& mine, const Elements& all, Reduction reduction) override {
    const OperationLabel label = LabelOf(OperationKind::kReduceScatter, mine, static_cast<std::uint32_t>(reduction));
    const auto element = static_cast<std::int64_t>(SizeOf(mine.type));
    const std::int64_t chunk = PartElements(element);
    const std::int64_t steps = std::max<std::int64_t>(1, (mine.count + chunk - 1) / chunk);
    const auto elements_of = [&](std::int64_t step) { return std::min(chunk, mine.count - step * chunk); };
    const auto part_at = [&](int peer, std::int64_t step) {
      return all.begin() + (peer * mine.count + step * chunk) * element;
    };
    std::vector<const void*> sources(static_cast<std::size_t>(size_));
    for (std::int64_t turn = 0; turn < steps + 1; ++turn) {
      if (turn < steps) {
        MR_TRY(Post(label, [&](std::byte* slot) {
          for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) continue;
            CopyBytes(slot + PlaceInSlot(peer, rank_) * chunk * element, part_at(peer, turn),
                      static_cast<std::size_t>(elements_of(turn) * element));
          }
        }));
      }
      if (turn >= 1) {
        const std::int64_t step = turn - 1;
        MR_TRY(TakeAll(label, [&](std::span<std::byte* const> slots) -> Status {
          for (int peer = 0; peer < size_; ++peer) {
            sources[peer] =
                peer == rank_ ? part_at(rank_, step) : slots[peer] + PlaceInSlot(rank_, peer) * chunk * element;
          }
          Combine(mine.type, reduction, mine.begin() + step * chunk * element, sources, elements_of(step));
          return {};
        }));
      }
    }
    return {};
  }

  Status AllGather(const Elements& all, const Elements& mine) override {
    const OperationLabel label = LabelOf(OperationKind::kAllGather, mine);
    const std::size_t bytes = mine.bytes(), chunk = layout_.slot_bytes();
    const std::size_t steps = std::max<std::size_t>(1, (bytes + chunk - 1) / chunk);
    const auto bytes_of = [&](std::size_t step) { return std::min(chunk, bytes - step * chunk); };
    std::byte* const own = all.begin() + static_cast<std::size_t>(rank_) * bytes;
    for (std::size_t turn = 0; turn < steps + 1; ++turn) {
      if (turn < steps) {
        MR_TRY(Post(label, [&](std::byte* slot) {
          const std::byte* const from = mine.begin() + turn * chunk;
          CopyBytes(slot, from, bytes_of(turn));
          if (own + turn * chunk != from) CopyBytes(own + turn * chunk, slot, bytes_of(turn));
        }));
      }
      if (turn == 0) continue;
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        MR_TRY(Take(label, peer, [&](const std::byte* slot) {
          CopyBytes(all.begin() + static_cast<std::size_t>(peer) * bytes + (turn - 1) * chunk, slot,
                    bytes_of(turn - 1));
        }));
      }
    }
    return {};
  }

  Status Broadcast(const Elements& elements, int root) override {
    const OperationLabel label = LabelOf(OperationKind::kBroadcast, elements, static_cast<std::uint32_t>(root));
    const std::size_t bytes = elements.bytes(), chunk = layout_.slot_bytes();
    const std::size_t steps = std::max<std::size_t>(1, (bytes + chunk - 1) / chunk);
    const auto copy = [&](std::byte* to, const std::byte* from, std::size_t step) {
      CopyBytes(to, from, std::min(chunk, bytes - step * chunk));
    };
    for (std::size_t step = 0; step < steps; ++step) {
      std::byte* const data = elements.begin() + step * chunk;
      if (rank_ == root) {
        MR_TRY(Post(label, [&](std::byte* slot) { copy(slot, data, step); }));
      }
      if (step == 0) {
        // Every rank posts a label, so that all of them notice if one has started something else.
        if (rank_ != root) MR_TRY(Post(label, [](std::byte*) {}));
        MR_TRY(TakeAll(label, [&](std::span<std::byte* const> slots) -> Status {
          if (rank_ != root) copy(data, slots[root], step);
          return {};
        }));
      } else if (rank_ != root) {
        MR_TRY(Take(label, root, [&](const std::byte* slot) { copy(data, slot, step); }));
      }
    }
    return {};
  }

  Status Send(const Elements& elements, int to) override {
    const OperationLabel label = LabelOf(OperationKind::kMessage, elements);
    ChannelState& channel = layout_.Channel(base(), rank_, to);
    std::uint32_t& sent = channels_[to].sent;
    return ForEachPiece(elements, [&](std::byte* data, std::size_t bytes) -> Status {
      MR_TRY(Await(channel.taken, sent + 1 - kChannelSlots, to));
      std::byte* const slot = layout_.ChannelSlot(base(), rank_, to, sent);
      std::memcpy(slot, &label, sizeof label);
      CopyBytes(slot + kAlignment, data, bytes);
      channel.sent.Raise(++sent);
      return {};
    });
  }

  Status Receive(const Elements& elements, int from) override {
    const OperationLabel label = LabelOf(OperationKind::kMessage, elements);
    ChannelState& channel = layout_.Channel(base(), from, rank_);
    std::uint32_t& taken = channels_[from].taken;
    return ForEachPiece(elements, [&](std::byte* data, std::size_t bytes) -> Status {
      MR_TRY(Await(channel.sent, taken + 1, from));
      const std::byte* const slot = layout_.ChannelSlot(base(), from, rank_, taken);
      MR_TRY(Compare(label, from, slot));
      CopyBytes(data, slot + kAlignment, bytes);
      channel.taken.Raise(++taken);
      return {};
    });
  }

  void Abort(const Error& cause) override { (void)RecordFailure(cause); }

  Result<std::unique_ptr<Collective>> Split(const std::string& name, std::span<const int> members) override {
    auto group = splitter_(name, members);
    // Why a member does not come is what this group was told, if anything.
    if (!group) MR_TRY(RecordedFailure());
    return group;
  }

 private:
  /// What this rank has done in a channel. The lane of each direction has one of the two.
  struct ChannelProgress {
    std::uint32_t sent = 0, taken = 0;
  };

  std::byte* base() const { return segment_->data(); }

  /// Returns how many elements each rank may have in a slot that has the parts of all ranks but one.
  std::int64_t PartElements(std::int64_t element_bytes) const {
    const std::size_t part = layout_.slot_bytes() / static_cast<std::size_t>(size_ - 1) / kAlignment * kAlignment;
    return static_cast<std::int64_t>(part) / element_bytes;
  }
  /// Returns the position of `rank`'s part in a slot of `owner`, whose own part is left out.
  static int PlaceInSlot(int rank, int owner) { return rank < owner ? rank : rank - 1; }

  /// Lets `fill` write the next slot of this rank's outbox and shows the slot to the others.
  template <class Fill>
  Status Post(const OperationLabel& label, Fill fill) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) MR_TRY(Await(layout_.Taken(base(), peer, rank_), posted_ + 1 - kOutboxSlots, peer));
    }
    std::byte* const slot = layout_.OutboxSlot(base(), rank_, posted_);
    std::memcpy(slot, &label, sizeof label);
    fill(slot + kAlignment);
    layout_.Rank(base(), rank_).posted.Raise(++posted_);
    return {};
  }

  /// Waits for the next slot of `peer`, which has the same label, and lets `use` read it.
  template <class Use>
  Status Take(const OperationLabel& label, int peer, Use use) {
    use(MR_TRY(NextSlot(label, peer)));
    Release(peer);
    return {};
  }
  /// Waits for the next slot of every peer, and lets `use` read them all; this rank's place is null.
  template <class Use>
  Status TakeAll(const OperationLabel& label, Use use) {
    std::vector<std::byte*> slots(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) slots[peer] = MR_TRY(NextSlot(label, peer));
    }
    MR_TRY(use(std::span<std::byte* const>(slots)));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) Release(peer);
    }
    return {};
  }
  Result<std::byte*> NextSlot(const OperationLabel& label, int peer) {
    MR_TRY(Await(layout_.Rank(base(), peer).posted, taken_[peer] + 1, peer));
    std::byte* const slot = layout_.OutboxSlot(base(), peer, taken_[peer]);
    MR_TRY(Compare(label, peer, slot));
    return slot + kAlignment;
  }
  void Release(int peer) { layout_.Taken(base(), rank_, peer).Raise(++taken_[peer]); }

  Status Compare(const OperationLabel& label, int peer, const std::byte* slot) {
    OperationLabel theirs;
    std::memcpy(&theirs, slot, sizeof theirs);
    return CompareLabels(label, NameOf(peer), theirs);
  }

  /// Calls `pass` with each piece of a message; with one empty piece if the tensor is empty.
  template <class Pass>
  Status ForEachPiece(const Elements& elements, Pass pass) const {
    const std::size_t bytes = elements.bytes(), most = layout_.channel_slot_bytes();
    std::size_t at = 0;
    do {
      const std::size_t piece = std::min(most, bytes - at);
      MR_TRY(pass(elements.begin() + at, piece));
      at += piece;
    } while (at < bytes);
    return {};
  }

  /// Blocks until `peer` has raised `counter` to `target`.
  Status Await(SharedCounter& counter, std::uint32_t target, int peer) {
    if (counter.Reached(target)) return {};
    const TimePoint start = SystemClock().Now();
    while (!counter.AwaitFor(target, spin_, std::min(kLookAfter, timeout_))) {
      MR_TRY(RecordedFailure());
      const auto state = layout_.Rank(base(), peer).presence.Look();
      if (counter.Reached(target)) return {};  // done before the peer left
      if (state == SharedPresence::State::kDead) return Lost("the process of rank {} has ended", peer);
      if (state == SharedPresence::State::kLeft) return Lost("rank {} has left the group", peer);
      if (SystemClock().Now() - start > timeout_) {
        return Fail(RecordFailure(Error(
            Code::kUnavailable, fmt::format("rank {} did not answer for {} ms", NameOf(peer),
                                            std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count()))));
      }
    }
    return {};
  }
  /// Returns a member's rank in the job.
  int NameOf(int member) const { return in_job_[static_cast<std::size_t>(member)]; }
  Status Lost(fmt::format_string<int> format, int peer) {
    return Fail(RecordFailure(Error(Code::kUnavailable, fmt::format(format, NameOf(peer)))));
  }

  /// Tells all ranks of the group's first failure, and returns that failure as this rank sees it.
  Error RecordFailure(const Error& error) {
    FailureRecord& record = layout_.Failure(base());
    std::uint32_t state = FailureRecord::kNone;
    if (record.state.compare_exchange_strong(state, FailureRecord::kBeingWritten)) {
      record.rank = rank_;
      record.code = static_cast<std::int32_t>(error.code());
      const std::string text = error.ToString();
      std::memcpy(record.text, text.data(), std::min(text.size(), sizeof record.text - 1));
      record.state.store(FailureRecord::kWritten);
      WakeAll();
      return error;
    }
    const Status recorded = RecordedFailure();
    return recorded ? error : recorded.error();
  }
  Status RecordedFailure() const {
    const FailureRecord& record = layout_.Failure(base());
    if (record.state.load() != FailureRecord::kWritten) return {};
    const auto code = static_cast<Code>(record.code);
    if (record.rank == rank_) return Fail(Error(code, record.text));
    return Fail(Error(code, fmt::format("rank {} reports: {}", NameOf(record.rank), record.text)));
  }
  void WakeAll() {
    for (int rank = 0; rank < size_; ++rank) {
      layout_.Rank(base(), rank).posted.Wake();
      for (int other = 0; other < size_; ++other) {
        layout_.Taken(base(), rank, other).Wake();
        layout_.Channel(base(), rank, other).sent.Wake();
        layout_.Channel(base(), rank, other).taken.Wake();
      }
    }
  }

  const std::shared_ptr<Segment> segment_;
  const SegmentLayout layout_;
  const int rank_, size_;
  const std::vector<int> in_job_;
  const Duration timeout_;
  const Duration spin_;
  const GroupSplitter splitter_;
  // Used only by the lane of collective operations.
  std::uint32_t posted_ = 0;
  std::vector<std::uint32_t> taken_;  ///< per peer
  // Each used only by the lanes of one peer.
  std::vector<ChannelProgress> channels_;  ///< per peer
  std::optional<PresenceHolder> presence_;
};

}  // namespace

std::size_t SharedMemoryBytes(int ranks) { return SegmentLayout(ranks).bytes(); }

void InitializeSharedMemory(Segment& segment, int ranks) {
  const SegmentLayout layout(ranks);
  for (int rank = 0; rank < ranks; ++rank) layout.Rank(segment.data(), rank).presence.Initialize();
}

std::unique_ptr<Transport> MakeSharedMemoryTransport(std::shared_ptr<Segment> segment, GroupMembers members,
                                                     Duration timeout, GroupSplitter splitter) {
  return std::make_unique<SharedMemoryTransport>(std::move(segment), std::move(members), timeout, std::move(splitter));
}

}  // namespace millrace::collectives
