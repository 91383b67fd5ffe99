// Whole runs of a tiny model over a folder, with threads as ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/collectives/connect.h"
#include "millrace/object/open/open.h"
#include "millrace/train/compile/step_compiler.h"
#include "millrace/train/testing/calling_observer.h"
#include "millrace/train/testing/test_corpus.h"
#include "millrace/train/trainer.h"

namespace millrace::train {

class TrainTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir(TempDir::Create().value());
    WriteCorpus(folder_->path());
  }
  static void TearDownTestSuite() { delete folder_; }

  Options Tiny(std::string_view run) const {
    Options options;
    options.name = run;
    options.model_config = {{"model_type", "llama"},        {"hidden_size", 32},        {"intermediate_size", 48},
                            {"num_hidden_layers", 2},       {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                            {"max_position_embeddings", 32}};
    options.data.sources = {{.url = (folder_->path() / "*.jsonl").native()}};
    options.data.sequence_length = 32;
    options.tokenizer_url = (folder_->path() / "tokenizer.model").native();
    options.global_batch = 8;
    options.micro_batch = 2;
    options.steps = 12;
    options.schedule = {.lr = 5e-3, .min_lr = 1e-4, .warmup_steps = 3};
    options.checkpoint.every_steps = 4;
    options.memory_budget = 128 * kMiB;
    return options;
  }
  std::string CheckpointUrl(std::string_view run) const { return (folder_->path() / "runs" / run).native(); }

  struct Ran {
    Result<RunOutcome> outcome = Fail(Code::kInternal, "not run");
    std::map<std::uint64_t, double> losses, norms;  ///< by step; of the gradient, before it is clipped
    std::map<std::uint64_t, EvalReport> evals;
    std::map<std::uint64_t, std::optional<std::uint64_t>> spikes;  ///< steps, and those that the run went back to
    CompileReport compiled;                                        ///< with Options::Compile::kOn
    Plan plan;
    std::vector<std::uint64_t> saved;
  };
  /// One rank; stops after the step that follows `stop_after`.
  Ran Run(const Options& options, std::uint64_t stop_after = 0) { return RunRanks(options, 1, stop_after); }

  /// `hold_until`: the first checkpoint stays under way until that step has been reported.
  Ran RunRanks(const Options& options, int ranks, std::uint64_t stop_after = 0, std::uint64_t hold_until = 0) {
    Ran ran;
    std::latch held(hold_until > 0 ? 1 : 0);
    std::stop_source stop;
    CallingObserver observer;
    observer.on_compiled = [&](const CompileReport& report) { ran.compiled = report; };
    observer.on_plan = [&](const Plan& plan) { ran.plan = plan; };
    observer.on_figures = [&](const StepReport& report) {
      ran.losses[report.step] = report.loss;
      ran.norms[report.step] = report.grad_norm;
      if (report.spike) ran.spikes[report.step] = report.went_back;
      if (report.step == stop_after) stop.request_stop();
      if (report.step == hold_until) held.count_down();
      if (on_step_) on_step_(report);
    };
    observer.on_evaluation = [&](const EvalReport& report) { ran.evals[report.step] = report; };
    observer.on_checkpoint = [&](const Result<checkpoint::SaveStats>& stats) {
      if (!stats && loses_ranks_) return failed_saves_.release();
      ASSERT_TRUE(stats) << stats.error().ToString();
      if (ran.saved.empty()) held.wait();
      ran.saved.push_back(stats->step);
    };
    auto groups = collectives::ConnectThreads(ranks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank, group = wrap_ ? wrap_(rank, std::move(groups[rank])) : std::move(groups[rank])] {
        auto connection = object::OpenConnection({}).value();
        Options mine = options;
        if (own_disks_) mine.checkpoint.local->path += fmt::format("/machine-{}", rank);
        std::vector<RunObserver*> observers = {&observer};
        observers.insert(observers.end(), more_observers_.begin(), more_observers_.end());
        auto outcome = Train(*connection, *group, mine, observers, stop.get_token());
        if (rank == 0) ran.outcome = std::move(outcome);
      });
    }
    threads.clear();
    return ran;
  }

  static std::vector<std::uint64_t> Keys(const std::map<std::uint64_t, EvalReport>& map) {
    std::vector<std::uint64_t> keys;
    for (const auto& [key, value] : map) keys.push_back(key);
    return keys;
  }

  /// Every byte of a checkpoint's tensors.
  std::map<std::string, std::string> Tensors(const std::string& url, std::uint64_t step) {
    auto connection = object::OpenConnection({}).value();
    auto reader = checkpoint::Reader::Open(*connection, url, step).value();
    std::map<std::string, std::string> tensors;
    for (const auto& [name, meta] : reader->manifest().tensors) {
      Buffer bytes(meta.bytes());
      EXPECT_TRUE(reader->Read(name, 0, bytes.span()));
      tensors[name] = AsText(bytes);
    }
    return tensors;
  }

  static inline TempDir* folder_ = nullptr;
  bool own_disks_ = false;                          ///< each rank is on a machine of its own
  bool loses_ranks_ = false;                        ///< so checkpoints may fail
  std::counting_semaphore<> failed_saves_{0};       ///< released for each checkpoint that failed
  std::function<void(const StepReport&)> on_step_;  ///< also called after each step
  std::vector<RunObserver*> more_observers_;        ///< of rank 0
  /// Wraps a rank's group of all ranks; empty: it stays as it is.
  std::function<std::unique_ptr<engine::Collective>(int rank, std::unique_ptr<engine::Collective>)> wrap_;
};

}  // namespace millrace::train
