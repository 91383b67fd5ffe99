// The schedules, by a simulation of ranks that exchange messages.
#include "millrace/engine/layout/pipeline_passes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace millrace::engine {
namespace {

using enum PipelineSchedule;

/// How long each kind of pass takes.
struct Costs {
  int forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  int Of(PassKind kind) const {
    switch (kind) {
      case PassKind::kForward:
        return forward;
      case PassKind::kBackward:
        return backward;
      case PassKind::kBackwardInput:
        return backward_input;
      case PassKind::kBackwardWeight:
        return backward_weight;
    }
    return 0;
  }
};

/// Ranks that follow their lists of passes. Messages between two ranks arrive in the order in which they are sent. A
/// rank that has sent `capacity` messages that the receiver has not taken waits before the next one.
class Simulation {
 public:
  Simulation(const PipelineShape& shape, std::vector<std::vector<PipelinePass>> passes, std::size_t capacity)
      : shape_(shape), passes_(std::move(passes)), capacity_(capacity), ranks_(passes_.size()) {
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      for (int other = 0; other < shape_.ranks; ++other) {
        if (rank != other) {
          channels_[{rank, other}].expected =
              MessagesBetween(shape_, passes_[static_cast<std::size_t>(rank)], rank, other);
        }
      }
    }
  }

  /// Returns the time at which the last rank is done; nothing if ranks wait for each other forever.
  std::optional<int> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < shape_.ranks; ++rank) {
        while (Advance(rank)) moved = true;
      }
    }
    int end = 0;
    for (std::size_t rank = 0; rank < passes_.size(); ++rank) {
      if (ranks_[rank].next != passes_[rank].size() || ranks_[rank].unsent) return std::nullopt;
      end = std::max(end, ranks_[rank].time);
    }
    return end;
  }

 private:
  struct RankState {
    std::size_t next = 0;
    int time = 0;
    std::optional<std::pair<int, PipelineMessage>> unsent;  ///< receiver and message of a pass that is done
  };
  struct Channel {
    std::vector<PipelineMessage> expected;
    std::vector<std::pair<PipelineMessage, int>> sent;  ///< and when
    std::size_t taken = 0;                              ///< as many receives as the receiver has started
  };

  bool Send(int rank) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    const auto& [receiver, message] = *state.unsent;
    Channel& channel = channels_[{rank, receiver}];
    if (channel.sent.size() >= channel.taken + capacity_) return false;
    EXPECT_LT(channel.sent.size(), channel.expected.size());
    EXPECT_EQ(channel.expected[channel.sent.size()], message) << "the receiver expects another message";
    channel.sent.emplace_back(message, state.time);
    state.unsent.reset();
    return true;
  }

  /// Returns when a message is there. Nothing if that is not yet known.
  std::optional<int> Arrival(int sender, int rank, const PipelineMessage& message) {
    if (sender == rank) return done_.contains(message) ? std::optional(done_[message]) : std::nullopt;
    Channel& channel = channels_[{sender, rank}];
    const auto at = static_cast<std::size_t>(std::ranges::find(channel.expected, message) - channel.expected.begin());
    EXPECT_LT(at, channel.expected.size());
    channel.taken = std::max(channel.taken, std::min(at + 2, channel.expected.size()));  // one ahead
    if (at >= channel.sent.size()) return std::nullopt;
    return channel.sent[at].second;
  }

  bool Advance(int rank) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    if (state.unsent) return Send(rank);
    const auto& passes = passes_[static_cast<std::size_t>(rank)];
    if (state.next == passes.size()) return false;
    const PipelinePass& pass = passes[state.next];
    const int stage = pass.stage * shape_.ranks + rank;
    int begin = state.time;
    if (pass.kind != PassKind::kBackwardWeight) {
      const bool is_gradient = pass.kind != PassKind::kForward;
      const int source = stage + (is_gradient ? 1 : -1);
      if (source >= 0 && source < shape_.stages()) {
        const auto arrival = Arrival(source % shape_.ranks, rank,
                                     {.is_gradient = is_gradient, .stage = stage, .micro_batch = pass.micro_batch});
        if (!arrival) return false;
        begin = std::max(begin, *arrival);
      }
    }
    state.time = begin + costs_.Of(pass.kind);
    ++state.next;
    Deliver(rank, pass, stage);
    return true;
  }

  void Deliver(int rank, const PipelinePass& pass, int stage) {
    if (pass.kind == PassKind::kBackwardWeight) return;
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    const bool is_gradient = pass.kind != PassKind::kForward;
    const int target = stage + (is_gradient ? -1 : 1);
    if (target < 0 || target >= shape_.stages()) return;
    const PipelineMessage message{is_gradient, target, pass.micro_batch};
    if (target % shape_.ranks == rank) {
      done_[message] = state.time;
    } else {
      state.unsent.emplace(target % shape_.ranks, message);
    }
  }

  struct Less {
    bool operator()(const PipelineMessage& a, const PipelineMessage& b) const {
      return std::tie(a.is_gradient, a.stage, a.micro_batch) < std::tie(b.is_gradient, b.stage, b.micro_batch);
    }
  };
  const PipelineShape shape_;
  const std::vector<std::vector<PipelinePass>> passes_;
  const std::size_t capacity_;
  const Costs costs_;
  std::vector<RankState> ranks_;
  std::map<std::pair<int, int>, Channel> channels_;  ///< by sender and receiver
  std::map<PipelineMessage, int, Less> done_;        ///< messages that stay on their rank, and when they are there
};

std::vector<std::vector<PipelinePass>> OfAllRanks(const PipelineShape& shape) {
  std::vector<std::vector<PipelinePass>> passes;
  for (int rank = 0; rank < shape.ranks; ++rank) passes.push_back(TrainingPasses(shape, rank));
  return passes;
}

constexpr std::size_t kUnbounded = 1 << 20;

std::optional<int> TimeOf(const PipelineShape& shape, std::size_t capacity = kUnbounded) {
  return Simulation(shape, OfAllRanks(shape), capacity).Run();
}

/// Calls `check` with every shape up to 8 ranks, 4 stages a rank and 20 micro-batches.
template <class Check>
void ForEveryShape(Check check) {
  for (const PipelineSchedule schedule : {kSimple, k1F1B, kInterleaved, kZeroBubble}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int stages = 1; stages <= (schedule == kInterleaved ? 4 : 1); ++stages) {
        for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
          const PipelineShape shape{schedule, ranks, stages, micro_batches};
          SCOPED_TRACE(shape.ToText());
          check(shape);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

/// The passes of one micro-batch through one stage of a rank, in order.
using Passes = std::vector<PassKind>;

TEST(PipelineSchedule, EachRankDoesEveryPassOnceInOrder) {
  ForEveryShape([](const PipelineShape& shape) {
    const bool splits = shape.schedule == kZeroBubble && shape.ranks > 1;
    const Passes expected = splits ? Passes{PassKind::kForward, PassKind::kBackwardInput, PassKind::kBackwardWeight}
                                   : Passes{PassKind::kForward, PassKind::kBackward};
    for (int rank = 0; rank < shape.ranks; ++rank) {
      std::map<std::pair<int, int>, Passes> done;
      std::map<std::pair<PassKind, int>, int> next;
      for (const PipelinePass& pass : TrainingPasses(shape, rank)) {
        done[{pass.stage, pass.micro_batch}].push_back(pass.kind);
        // In the order of micro-batches, so that gradients are added in that order.
        EXPECT_EQ(pass.micro_batch, (next[{pass.kind, pass.stage}]++));
      }
      EXPECT_EQ(done.size(), static_cast<std::size_t>(shape.virtual_stages * shape.micro_batches));
      for (const auto& [where, passes] : done) {
        EXPECT_LT(where.first, shape.virtual_stages);
        EXPECT_EQ(passes, expected);
      }
    }
  });
}

TEST(PipelineSchedule, NoRankWaitsForever) {
  ForEveryShape([](const PipelineShape& shape) {
    EXPECT_TRUE(TimeOf(shape));
    EXPECT_TRUE(TimeOf(shape, 1)) << "though a rank may be only one message ahead of its receiver";
  });
  // The simulation can tell: two ranks that wait for each other's gradients first.
  const PipelineShape shape{.ranks = 2, .micro_batches = 1};
  std::vector<std::vector<PipelinePass>> passes = OfAllRanks(shape);
  std::ranges::reverse(passes[0]);
  EXPECT_FALSE(Simulation(shape, passes, kUnbounded).Run());
}

/// Returns the most micro-batches of a stage of which a rank holds activations: those between a forward pass and the
/// pass after which `is_end` says that they are gone.
template <class IsEnd>
int MostInFlight(const PipelineShape& shape, int rank, IsEnd is_end) {
  int now = 0, most = 0;
  for (const PipelinePass& pass : TrainingPasses(shape, rank)) {
    if (pass.kind == PassKind::kForward) most = std::max(most, ++now);
    if (is_end(pass.kind)) --now;
  }
  EXPECT_EQ(now, 0);
  return most;
}
bool Uses(PassKind kind) { return kind == PassKind::kBackward || kind == PassKind::kBackwardInput; }
bool Frees(PassKind kind) { return kind == PassKind::kBackward || kind == PassKind::kBackwardWeight; }

TEST(PipelineSchedule, HoldsTheActivationsThatItPromises) {
  ForEveryShape([](const PipelineShape& shape) {
    const int p = shape.ranks, v = shape.virtual_stages, m = shape.micro_batches;
    for (int rank = 0; rank < p; ++rank) {
      const int held = MostInFlight(shape, rank, Frees), unused = MostInFlight(shape, rank, Uses);
      if (p == 1 && v == 1) {
        EXPECT_EQ(held, 1);
      } else if (v > 1) {
        const int promised = std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
        if (m % p == 0) EXPECT_EQ(held, promised);
        EXPECT_LE(held, promised);
      } else if (shape.schedule == kSimple) {
        EXPECT_EQ(held, m);
      } else if (shape.schedule == kZeroBubble) {
        EXPECT_EQ(held, std::min(m, p)) << "as 1F1B's first rank";
        EXPECT_EQ(unused, std::min(m, p - rank)) << "as 1F1B";
      } else {
        EXPECT_EQ(held, std::min(m, p - rank));
      }
    }
  });
}

TEST(PipelineSchedule, WaitsNoLongerThanThePapersSay) {
  ForEveryShape([](const PipelineShape& shape) {
    const int p = shape.ranks, v = shape.virtual_stages, m = shape.micro_batches;
    const int time = TimeOf(shape).value(), work = 3 * m * v;
    if (shape.schedule == kZeroBubble) {
      // (p - 1) (F + B - W) of 3 (p - 1) units are left, once there are enough micro-batches.
      EXPECT_EQ(time - work, p == 1 ? 0 : std::max(p - 1, 2 * p - 1 - m));
    } else if (v == 1 || m % p == 0) {
      EXPECT_EQ(time - work, 3 * (p - 1)) << "of the work, (p - 1) / (m v)";
    } else {
      EXPECT_GE(time - work, 3 * (p - 1));
      PipelineShape full = shape, plain = shape;
      full.micro_batches = (m / p + 1) * p;
      EXPECT_LT(time, TimeOf(full).value());
      plain.virtual_stages = 1;
      EXPECT_LE(time, v * TimeOf(plain).value()) << "no slower than 1F1B";
    }
  });
}

std::string TextOf(const std::vector<PipelinePass>& passes) {
  std::string text;
  for (const PipelinePass& pass : passes) {
    text += fmt::format(" {}{}{}", std::string_view("FBIW")[static_cast<std::size_t>(pass.kind)],
                        std::string_view("abcd")[static_cast<std::size_t>(pass.stage)], pass.micro_batch);
  }
  return text;
}

TEST(PipelineSchedule, IsThatOfThePapers) {
  EXPECT_EQ(TextOf(TrainingPasses({kSimple, 2, 1, 3}, 1)), " Fa0 Fa1 Fa2 Ba0 Ba1 Ba2");
  EXPECT_EQ(TextOf(TrainingPasses({k1F1B, 4, 1, 5}, 1)), " Fa0 Fa1 Fa2 Ba0 Fa3 Ba1 Fa4 Ba2 Ba3 Ba4");
  EXPECT_EQ(TextOf(TrainingPasses({kInterleaved, 2, 2, 4}, 1)),
            " Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3");
  EXPECT_EQ(TextOf(TrainingPasses({kZeroBubble, 2, 1, 4}, 1)), " Fa0 Ia0 Fa1 Ia1 Wa0 Fa2 Ia2 Wa1 Fa3 Ia3 Wa2 Wa3");
  EXPECT_EQ(TextOf(TrainingPasses({kZeroBubble, 1, 1, 2}, 0)), " Fa0 Ba0 Fa1 Ba1");
  EXPECT_EQ(TextOf(TrainingPasses({kSimple, 1, 1, 2}, 0)), " Fa0 Ba0 Fa1 Ba1");
}

TEST(PipelineShape, IsReadable) {
  EXPECT_EQ((PipelineShape{kZeroBubble, 4, 1, 8}).ToText(), "zero_bubble, 4 ranks × 1 stages, 8 micro-batches");
}

TEST(PipelineSchedule, EvaluationVisitsEveryStageOnce) {
  ForEveryShape([](const PipelineShape& shape) {
    const std::vector<PipelinePass> passes = EvaluationPasses(shape);
    EXPECT_EQ(passes.size(), static_cast<std::size_t>(shape.virtual_stages * shape.micro_batches));
    const std::vector<std::vector<PipelinePass>> all(static_cast<std::size_t>(shape.ranks), passes);
    EXPECT_TRUE(Simulation(shape, all, kUnbounded).Run());
    EXPECT_TRUE(Simulation(shape, all, static_cast<std::size_t>(shape.stages())).Run());
  });
  EXPECT_EQ(TextOf(EvaluationPasses({kInterleaved, 2, 2, 3})), " Fa0 Fa1 Fb0 Fb1 Fa2 Fb2");
}

}  // namespace
}  // namespace millrace::engine
