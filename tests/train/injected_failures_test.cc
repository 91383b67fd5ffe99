// Whole training runs in random layouts of 2 to 8 ranks, of which one is slow, fails, is lost or hangs at a random
// operation. Every run learns what one rank learns, or ends on all ranks with errors that name the rank to blame.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/hash/random.h"
#include "millrace/collectives/testing/faulty.h"
#include "millrace/train/testing/train_runs.h"

namespace millrace::train {
namespace {

using collectives::FaultPlan;
using engine::PipelineSchedule;

enum class InjectedFault { kNone, kLost, kFails, kHangs };

/// A run in which every choice follows from the seed.
struct InjectedRun {
  explicit InjectedRun(std::uint64_t run_seed) : seed(run_seed) {
    Random random(Mix64(seed));
    const auto draw = [&](std::initializer_list<int> values) { return values.begin()[random.Below(values.size())]; };
    do {
      parallel.data = draw({1, 2, 4});
      parallel.tensor = draw({1, 2});
      parallel.pipeline = draw({1, 2, 4});
    } while (ranks() < 2 || ranks() > 8);
    parallel.sequence = parallel.tensor > 1 && draw({0, 1}) == 1;
    if (parallel.data > 1) {
      parallel.zero = draw({0, 1, 2, 3});
      parallel.shard = parallel.zero == 0 ? 1 : std::min(parallel.data, draw({2, 4}));
    }
    if (parallel.pipeline > 1) {
      parallel.schedule = static_cast<PipelineSchedule>(draw({0, 1, 2, 3}));
      const bool interleaved = parallel.schedule == PipelineSchedule::kInterleaved;
      if (interleaved && parallel.pipeline > 2) parallel.schedule = PipelineSchedule::k1F1B;  // there are four blocks
      if (interleaved && parallel.pipeline == 2) parallel.virtual_stages = 2;
    }
    parallel.reshard = draw({0, 1}) == 1;
    saves = draw({0, 1}) == 1;
    evaluates = draw({0, 1}) == 1;
    fault = static_cast<InjectedFault>(draw({0, 1, 1, 2, 2, 3}));
    culprit = static_cast<int>(random.Below(static_cast<std::uint64_t>(ranks())));
    // Of as many operations as a rank of such a run starts: some 20 to 200. Small numbers fall into the preparation.
    operation = random.Below(std::uint64_t{1} << (3 + random.Below(5)));
    most_delay = std::chrono::microseconds(draw({0, 0, 50, 300}));
  }
  int ranks() const { return parallel.data * parallel.tensor * parallel.pipeline; }

  FaultPlan PlanOf(int rank, std::stop_token released) const {
    FaultPlan plan{.seed = seed, .most_delay = most_delay, .released = std::move(released)};
    if (rank != culprit) return plan;
    if (fault == InjectedFault::kLost) plan.lost_at = operation;
    if (fault == InjectedFault::kFails) plan.fails_at = operation;
    if (fault == InjectedFault::kHangs) plan.hangs_at = operation;
    return plan;
  }
  std::string ToText() const {
    static constexpr const char* kFaults[] = {"none", "lost", "fails", "hangs"};
    return fmt::format(
        "seed {}: data {} shard {} zero {} tensor {} sequence {} pipeline {} schedule {}, rank {}: {} at operation {}",
        seed, parallel.data, parallel.shard, parallel.zero, parallel.tensor, parallel.sequence, parallel.pipeline,
        engine::PipelineScheduleName(parallel.schedule), culprit, kFaults[static_cast<int>(fault)], operation);
  }

  const std::uint64_t seed;
  engine::ParallelOptions parallel = {.data = 1};
  bool saves = false, evaluates = false;
  InjectedFault fault = InjectedFault::kNone;
  int culprit = 0;
  std::uint64_t operation = 0;
  Duration most_delay{};
};

class InjectedFailures : public TrainTest {
 protected:
  static constexpr std::uint64_t kSteps = 3;

  Options OptionsOf(const InjectedRun& run) const {
    Options options = Tiny("injected");
    options.model_config.update({{"num_hidden_layers", 4}});
    options.data.split.held_out = 0.1;
    options.data.threads = 1;
    options.steps = kSteps;
    options.schedule = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 1};
    options.parallel = run.parallel;
    options.checkpoint.every_steps = 2;
    if (run.saves) options.checkpoint.url = CheckpointUrl(fmt::format("injected-{}", run.seed));
    if (run.evaluates) options.eval.every_steps = 2;
    options.eval.samples = 8;
    options.data.shuffle_window = 256;
    options.memory_budget = 32 * kMiB;
    return options;
  }

  struct Ended {
    std::vector<Result<RunOutcome>> outcomes;
    std::map<std::uint64_t, double> losses;
  };
  Ended Play(const InjectedRun& run) {
    const int ranks = run.ranks();
    // A rank that hangs is noticed by the time-out alone.
    const auto timeout = run.fault == InjectedFault::kHangs ? Duration(std::chrono::seconds(1)) : kGiveUp;
    auto groups = collectives::ConnectThreads(ranks, timeout);
    Ended ended;
    ended.outcomes.resize(static_cast<std::size_t>(ranks), Fail(Code::kInternal, "not run"));
    CallingObserver observer;
    observer.on_step = [&](const StepReport& report) { ended.losses[report.step] = report.loss; };
    const Options options = OptionsOf(run);
    std::stop_source release;
    std::latch others(ranks - 1);  // the ranks that are not to blame
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        {
          const auto group = collectives::MakeFaulty(std::move(groups[rank]), run.PlanOf(rank, release.get_token()));
          auto connection = object::OpenConnection({}).value();
          ended.outcomes[rank] = Train(*connection, *group, options, {&observer}, {});
          // A rank that has ended leaves the group: its process is gone.
        }
        if (rank != run.culprit) others.count_down();
      });
    }
    others.wait();
    release.request_stop();
    threads.clear();
    return ended;
  }

  /// Returns whether the fault struck.
  bool Check(const InjectedRun& run, const Ended& ended, const std::map<std::uint64_t, double>& want) {
    const bool all_done = std::ranges::all_of(ended.outcomes, [](const auto& outcome) { return outcome.has_value(); });
    if (all_done) {
      EXPECT_EQ(ended.losses.size(), kSteps);
      for (const auto& [step, loss] : ended.losses) EXPECT_NEAR(loss, want.at(step), 2e-6 * loss) << "step " << step;
      return false;
    }
    EXPECT_NE(run.fault, InjectedFault::kNone);
    const std::string blamed = fmt::format("rank {} ", run.culprit);
    bool named = false;
    for (int rank = 0; rank < run.ranks(); ++rank) {
      const Result<RunOutcome>& outcome = ended.outcomes[static_cast<std::size_t>(rank)];
      // A rank may be done with all steps before another is lost on its way out.
      if (outcome) {
        EXPECT_EQ(outcome->step, kSteps);
        continue;
      }
      const std::string text = outcome.error().ToString();
      const bool names = (text + " ").find(blamed) != std::string::npos;
      named = named || names;
      if (rank == run.culprit) continue;
      // With a time-out, ranks that wait for ranks that wait for the culprit may give up first.
      if (run.fault != InjectedFault::kHangs) EXPECT_TRUE(names) << "rank " << rank << ": " << text;
      if (run.fault == InjectedFault::kHangs) EXPECT_NE(text.find("rank "), std::string::npos) << text;
    }
    EXPECT_TRUE(named) << "nobody names rank " << run.culprit;
    return true;
  }

  /// Longer than any run takes.
  static constexpr Duration kGiveUp = std::chrono::seconds(60);
};

std::uint64_t SeedFrom(const char* variable, std::uint64_t absent) {
  const char* given = std::getenv(variable);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : absent;
}

/// The seeds are MILLRACE_INJECTED_FIRST to MILLRACE_INJECTED_LAST.
TEST_F(InjectedFailures, EndOnAllRanksOrChangeNothing) {
  const std::uint64_t first_seed = SeedFrom("MILLRACE_INJECTED_FIRST", 1);
  const std::uint64_t last_seed = SeedFrom("MILLRACE_INJECTED_LAST", 40);
  InjectedRun plain(1);
  plain.parallel = {.data = 1};
  plain.saves = plain.evaluates = false;
  const Ran one = Run(OptionsOf(plain));
  ASSERT_TRUE(one.outcome) << one.outcome.error().ToString();
  std::map<InjectedFault, int> struck;
  for (std::uint64_t seed = first_seed; seed <= last_seed; ++seed) {
    const InjectedRun run(seed);
    SCOPED_TRACE(run.ToText());
    const TimePoint start = SystemClock().Now();
    const Ended ended = Play(run);
    EXPECT_LT(SystemClock().Now() - start, kGiveUp / 2) << "ended by the time-out";
    if (Check(run, ended, one.losses)) ++struck[run.fault];
    if (HasFailure()) return;
  }
  for (const auto fault : {InjectedFault::kLost, InjectedFault::kFails, InjectedFault::kHangs}) {
    EXPECT_GT(struck[fault], 0) << "of fault " << static_cast<int>(fault);
  }
  fmt::print("seeds {} to {}: {} lost, {} failed, {} hung\n", first_seed, last_seed, struck[InjectedFault::kLost],
             struck[InjectedFault::kFails], struck[InjectedFault::kHangs]);
}

}  // namespace
}  // namespace millrace::train
