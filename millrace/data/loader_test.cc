#include "millrace/data/loader.h"
#include "millrace/data/batch/stage_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "millrace/data/testing/testing.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = object::MakeMemoryStore();
    connection_["corpus"] = store_;
    for (int i = 0; i < 3; ++i) {
      PutText(*store_, fmt::format("{}.jsonl", i), ToJsonl(MakeTexts(std::to_string(i), 60, 120, i)));
    }
    dataset_ = Open(SequenceMode::kPack);
  }

  std::shared_ptr<Dataset> Open(SequenceMode mode) {
    return Dataset::Open(
               connection_, std::make_shared<ByteTokenizer>(),
               {.sources = {{"s3://corpus/*.jsonl", 1.0}}, .sequence_length = 16, .mode = mode, .shuffle_window = 50},
               {})
        .value();
  }

  std::unique_ptr<Loader> Start(Loader::Options options, LoaderState state = {}) {
    auto started = Loader::Start(dataset_, budget_, options, state);
    if (!started) ADD_FAILURE() << started.error().ToString();
    return std::move(started).value();
  }

  struct BatchRow {
    std::uint64_t sample = 0;
    std::vector<TokenId> inputs, labels;
    bool operator==(const BatchRow&) const = default;
  };
  static void Append(const Batch& batch, std::vector<BatchRow>& rows) {
    for (int r = 0; r < batch.rows; ++r) {
      auto at = [&](const std::vector<TokenId>& from) {
        return std::vector<TokenId>(from.begin() + r * batch.sequence_length,
                                    from.begin() + (r + 1) * batch.sequence_length);
      };
      rows.push_back({batch.first_sample + r, at(batch.inputs), at(batch.labels)});
    }
  }

  /// Returns the samples of all ranks in `batches` global batches from `state` on, in the global order.
  std::vector<BatchRow> Read(Loader::Options options, std::uint64_t batches, LoaderState state = {},
                             LoaderState* after = nullptr) {
    std::vector<BatchRow> rows;
    std::vector<std::unique_ptr<Loader>> loaders;
    for (options.rank = 0; options.rank < options.ranks; ++options.rank) loaders.push_back(Start(options, state));
    for (std::uint64_t b = 0; b < batches; ++b) {
      for (auto& loader : loaders) {
        for (int m = 0; m < options.global_batch / options.ranks / options.micro_batch; ++m) {
          Append(loader->Next().value(), rows);
        }
      }
    }
    for (auto& loader : loaders) EXPECT_EQ(loader->state(), loaders[0]->state());
    if (after) *after = loaders[0]->state();
    return rows;
  }

  /// A simple implementation: reads samples one by one, and leaves out partial batches at the end of an epoch.
  std::vector<BatchRow> Expected(std::uint64_t global_batch, std::uint64_t batches) {
    std::vector<BatchRow> rows;
    std::uint64_t per_epoch = dataset_->samples_per_epoch() / global_batch;
    for (std::uint64_t b = 0; b < batches; ++b) {
      for (std::uint64_t i = 0; i < global_batch; ++i) {
        BatchRow row{b % per_epoch * global_batch + i, std::vector<TokenId>(16), std::vector<TokenId>(16)};
        EXPECT_TRUE(dataset_->ReadSample(b / per_epoch, row.sample, row.inputs, row.labels).has_value());
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }

  MemoryBudget budget_{256 * kMiB};
  std::shared_ptr<object::Store> store_;
  testing::TestConnection connection_;
  std::shared_ptr<Dataset> dataset_;
};

TEST_F(LoaderTest, RanksAndThreadsDoNotChangeTheOrder) {
  std::uint64_t batches = 2 * (dataset_->samples_per_epoch() / 24) + 3;
  std::vector<BatchRow> expected = Expected(24, batches);
  for (Loader::Options options :
       {Loader::Options{.ranks = 1, .global_batch = 24, .threads = 1},
        {.ranks = 1, .global_batch = 24, .micro_batch = 24, .prefetch_batches = 1, .threads = 4},
        {.ranks = 2, .global_batch = 24, .micro_batch = 3, .threads = 3},
        {.ranks = 8, .global_batch = 24, .micro_batch = 1, .threads = 2}}) {
    EXPECT_EQ(Read(options, batches), expected) << options.ranks << " ranks, " << options.threads << " threads";
  }
}

TEST_F(LoaderTest, ResumesAtEveryPointOnAnyNumberOfRanks) {
  std::uint64_t per_epoch = dataset_->samples_per_epoch() / 48, total = per_epoch + 4;
  std::vector<BatchRow> expected = Expected(48, total);
  for (std::uint64_t stop_at = 0; stop_at <= total; stop_at += stop_at + 3 < per_epoch ? 3 : 1) {
    LoaderState state;
    int ranks = stop_at % 2 ? 4 : 1;
    Loader::Options options{.ranks = ranks, .global_batch = 48, .micro_batch = 12, .prefetch_batches = 3, .threads = 2};
    std::vector<BatchRow> rows = Read(options, stop_at, {}, &state);
    auto restored = LoaderState::Parse(state.Serialize()).value();
    options.ranks = 5 - ranks;
    auto rest = Read(options, total - stop_at, restored);
    rows.insert(rows.end(), rest.begin(), rest.end());
    ASSERT_EQ(rows, expected) << "stopped after " << stop_at;
  }
}

TEST_F(LoaderTest, StridedLoadersShareTheBatches) {
  std::uint64_t batches = dataset_->samples_per_epoch() / 24 + 5;
  std::vector<BatchRow> expected = Expected(24, batches);
  std::vector<std::unique_ptr<Loader>> loaders;
  constexpr int kStride = 3;
  for (int phase = 0; phase < kStride; ++phase) {
    loaders.push_back(Start({.global_batch = 24, .micro_batch = 24, .stride = kStride, .phase = phase}));
  }
  std::vector<BatchRow> rows;
  for (std::uint64_t b = 0; b < batches; ++b) {
    auto& loader = loaders[b % kStride];
    // In the middle each loader continues from its own state.
    if (b / kStride == batches / kStride / 2) {
      LoaderState state = loader->state();
      loader = Start({.global_batch = 24, .micro_batch = 24, .stride = kStride}, state);
    }
    Append(loader->Next().value(), rows);
  }
  EXPECT_EQ(rows, expected);
}

TEST_F(LoaderTest, StateMovesWithWholeGlobalBatchesOnly) {
  auto loader = Start({.ranks = 2, .global_batch = 8, .micro_batch = 2});
  EXPECT_EQ(loader->state().samples, 0u);
  ASSERT_TRUE(loader->Next().has_value());
  EXPECT_EQ(loader->state().samples, 0u) << "half of the rank's share";
  ASSERT_TRUE(loader->Next().has_value());
  EXPECT_EQ(loader->state().samples, 8u);
  EXPECT_EQ(loader->batches_per_epoch(), dataset_->samples_per_epoch() / 8);
  for (std::uint64_t i = 2; i < 2 * loader->batches_per_epoch(); ++i) ASSERT_TRUE(loader->Next().has_value());
  EXPECT_EQ(loader->state().epoch, 1u);
  EXPECT_EQ(loader->state().samples, 0u);
  EXPECT_EQ(loader->stats().batches, 2 * loader->batches_per_epoch());
  EXPECT_EQ(loader->stats().tokens, 2 * loader->batches_per_epoch() * 2 * 16);
}

TEST_F(LoaderTest, AnotherGlobalBatchGoesOnWhereTheOldOneStopped) {
  LoaderState state;
  Read({.global_batch = 10}, 3, {}, &state);
  EXPECT_EQ(state.samples, 30u);
  auto rows = Read({.global_batch = 8, .micro_batch = 8}, 1, state);
  EXPECT_EQ(rows.front().sample, 30u);
}

TEST_F(LoaderTest, CountsTheTokensThatMatter) {
  dataset_ = Open(SequenceMode::kPad);
  auto batch = Start({.global_batch = 4, .micro_batch = 4})->Next().value();
  auto ignored = static_cast<std::uint64_t>(std::ranges::count(batch.labels, kIgnoreLabel));
  EXPECT_EQ(batch.loss_tokens, 64 - ignored);
}

TEST_F(LoaderTest, RefusesAStateOfOtherDataAndNamesWhatDiffers) {
  LoaderState state = Start({})->state();
  PutText(*store_, "1.jsonl", ToJsonl(MakeTexts("new", 60, 120, 9)));
  dataset_ = Open(SequenceMode::kPack);
  auto refused = Loader::Start(dataset_, budget_, {}, state);
  EXPECT_EQ(refused.error().code(), Code::kPreconditionFailed);
  EXPECT_NE(refused.error().message().find("other data: objects differ"), std::string::npos)
      << refused.error().ToString();
  dataset_ = Open(SequenceMode::kPad);
  refused = Loader::Start(dataset_, budget_, {}, state);
  EXPECT_NE(refused.error().message().find("mode differs (pack then, pad now)"), std::string::npos)
      << refused.error().ToString();
  LoaderState unnamed{.epoch = 1, .samples = 8};
  EXPECT_EQ(Loader::Start(dataset_, budget_, {}, unnamed).error().code(), Code::kPreconditionFailed);
}

TEST_F(LoaderTest, RefusesWhatCannotWork) {
  for (Loader::Options bad : {Loader::Options{.ranks = 3, .global_batch = 8},
                              {.rank = 1, .ranks = 1},
                              {.ranks = 0},
                              {.global_batch = 8, .micro_batch = 3},
                              {.global_batch = 1 << 20},
                              {.threads = 0}}) {
    EXPECT_EQ(Loader::Start(dataset_, budget_, bad, {}).error().code(), Code::kInvalidArgument);
  }
  MemoryBudget tiny(kMiB);
  auto refused = Loader::Start(dataset_, tiny, {}, {});
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(tiny.used(), 0u);
}

TEST_F(LoaderTest, GivesItsMemoryBack) {
  {
    auto loader = Start({});
    ASSERT_TRUE(loader->Next().has_value());
    EXPECT_GT(budget_.used(), 0u);
    EXPECT_LT(budget_.used(), 64 * kMiB) << "the corpus is small, so is its window";
  }
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(LoaderTest, AFailureComesInItsPlaceAndStays) {
  auto faults = object::FaultStore::Create(store_);
  connection_["corpus"] = faults;
  dataset_ = Open(SequenceMode::kPack);
  faults->Add({.operation = object::Operation::kGet, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  auto loader = Start({});
  auto failed = loader->Next();
  EXPECT_EQ(failed.error().code(), Code::kPermissionDenied);
  EXPECT_NE(failed.error().ToString().find("jsonl"), std::string::npos) << "the object is named";
  faults->Clear();
  EXPECT_EQ(loader->Next().error().code(), Code::kPermissionDenied);
  EXPECT_EQ(Read({}, 20, loader->state()), Expected(8, 20)) << "a new loader goes on where this one stopped";
}

TEST_F(LoaderTest, WaitingCanBeInterrupted) {
  FakeClock clock;  // stands still: reads never come back on their own
  auto stuck = object::FaultStore::Create(store_, 1, clock);
  connection_["corpus"] = stuck;
  auto slow = Open(SequenceMode::kPack);
  stuck->Add({.operation = object::Operation::kGet, .times = -1, .fault = {.latency = std::chrono::hours(1)}});
  auto loader = Loader::Start(slow, budget_, {}, {}).value();
  std::stop_source stop;
  std::jthread interrupter([&] {
    clock.AwaitSleepers(1);
    stop.request_stop();
  });
  EXPECT_EQ(loader->Next(stop.get_token()).error().code(), Code::kCancelled);
  EXPECT_GT(loader->stats().waited.count(), 0);
}

/// A long document is tokenized once although it fills many samples, and each chunk is read once per epoch.
TEST_F(LoaderTest, ReadsEachChunkAndTokenizesEachDocumentOnce) {
  struct Counting final : ByteTokenizer {
    Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
      ++encoded;
      return ByteTokenizer::Encode(text, ids);
    }
    mutable std::atomic<int> encoded = 0;
  };
  auto faults = object::FaultStore::Create(store_);
  connection_["long"] = faults;
  std::vector<std::string> texts = MakeTexts("x", 40, 50'000, 4);
  PutText(*store_, "long.jsonl", ToJsonl(texts));
  auto tokenizer = std::make_shared<Counting>();
  dataset_ =
      Dataset::Open(connection_, tokenizer, {.sources = {{"s3://long/long.jsonl"}}, .sequence_length = 16}, {}).value();
  tokenizer->encoded = 0;
  std::uint64_t gets = faults->calls(object::Operation::kGet);
  auto loader = Start({.global_batch = 8, .micro_batch = 8, .threads = 4});
  for (std::uint64_t i = 0; i < loader->batches_per_epoch(); ++i) ASSERT_TRUE(loader->Next().has_value());
  EXPECT_LE(tokenizer->encoded, 2 * 40) << "the prefetch may have begun the next epoch";
  std::uint64_t chunks = dataset_->bytes() / (512 * kKiB) + 1;
  EXPECT_LE(faults->calls(object::Operation::kGet) - gets, chunks + 3);
}

/// Options that change rows. The tests use two sources; a pass over one of them takes more than an epoch.
struct Settings {
  const char* name;
  SequenceMode mode;
  bool best_fit = false, split_long = false, boundaries = false;
  friend void PrintTo(const Settings& s, std::ostream* out) { *out << s.name; }
};

class LoaderModes : public LoaderTest, public ::testing::WithParamInterface<Settings> {
 protected:
  void SetUp() override {
    LoaderTest::SetUp();
    std::string lines;
    for (const std::string& text : MakeTexts("q", 150, 40, 9))
      lines += DumpJson({{"text", text}, {"response", text}}) + "\n";
    PutText(*store_, "more/q.jsonl", lines);
    PutText(*store_, "more/r.jsonl", lines + lines);
  }
  DatasetOptions Options() const {
    return {.sources = {{"s3://corpus/more/q.jsonl", 1.5}, {"s3://corpus/more/r.jsonl", 0.4}},
            .sequence_length = 16,
            .mode = GetParam().mode,
            .best_fit = GetParam().best_fit,
            .split_long = GetParam().split_long,
            .boundaries = GetParam().boundaries,
            .shuffle_window = 70};
  }
  std::shared_ptr<Dataset> Reopen(DatasetOptions options) {
    return Dataset::Open(connection_, std::make_shared<ByteTokenizer>(), std::move(options), {}).value();
  }
};

/// Stops at random places, between and within batches, and continues with other ranks and threads. The rows, their
/// order and their marks are those of an undisturbed run.
TEST_P(LoaderModes, KillsAndOtherRanksChangeNothing) {
  dataset_ = Reopen(Options());
  const std::uint64_t total = 2 * (dataset_->samples_per_epoch() / 24) + 5;
  std::vector<BatchRow> expected = Expected(24, total);
  Random random(17);
  std::vector<BatchRow> rows;
  LoaderState state;
  for (std::uint64_t done = 0, life = 0; done < total; ++life) {
    const int ranks = std::array{1, 2, 4, 3}[life % 4];
    const std::uint64_t batches = std::min(total - done, random.Below(total / 3));
    Loader::Options options{.ranks = ranks,
                            .global_batch = 24,
                            .micro_batch = ranks == 1 ? 24 : 2,
                            .prefetch_batches = static_cast<int>(1 + random.Below(5)),
                            .threads = static_cast<int>(1 + random.Below(3))};
    std::vector<std::unique_ptr<Loader>> loaders;
    for (options.rank = 0; options.rank < ranks; ++options.rank) loaders.push_back(Start(options, state));
    for (std::uint64_t b = 0; b < batches; ++b) {
      for (auto& loader : loaders) {
        for (int m = 0; m < 24 / ranks / options.micro_batch; ++m) Append(loader->Next().value(), rows);
      }
    }
    std::string saved = loaders[0]->state().Serialize();
    // A batch that some ranks have not got does not count.
    if (ranks > 1 && done + batches < total) {
      EXPECT_TRUE(loaders[0]->Next().has_value());
      EXPECT_EQ(loaders[0]->state().Serialize(), saved);
    }
    state = LoaderState::Parse(saved).value();
    done += batches;
  }
  EXPECT_EQ(rows, expected);
}

TEST_P(LoaderModes, BatchesSayWhereDocumentsAndPaddingAre) {
  dataset_ = Reopen(Options());
  auto loader = Start({.global_batch = 6, .micro_batch = 3});
  for (std::uint64_t b = 0; b < 2 * loader->batches_per_epoch(); ++b) {
    Batch batch = loader->Next().value();
    ASSERT_EQ(batch.lengths.size(), 3u);
    for (int r = 0; r < 3; ++r) {
      ASSERT_GT(batch.lengths[r], 0);
      for (int t = batch.lengths[r]; t < 16; ++t) {
        ASSERT_EQ(batch.inputs[r * 16 + t], 2);
        ASSERT_EQ(batch.labels[r * 16 + t], kIgnoreLabel);
      }
      if (GetParam().mode == SequenceMode::kPack) {
        ASSERT_EQ(batch.lengths[r], 16);
      }
    }
    if (!GetParam().boundaries) {
      ASSERT_TRUE(batch.positions.empty() && batch.cu_seqlens.empty());
      continue;
    }
    ASSERT_EQ(batch.positions.size(), 48u);
    ASSERT_EQ(batch.cu_seqlens.front(), 0);
    ASSERT_EQ(batch.cu_seqlens.back(), 48);
    for (std::size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
      ASSERT_LT(batch.cu_seqlens[d], batch.cu_seqlens[d + 1]);
      for (std::int32_t t = batch.cu_seqlens[d]; t < batch.cu_seqlens[d + 1]; ++t) {
        ASSERT_EQ(batch.positions[t], t - batch.cu_seqlens[d]);
        ASSERT_FALSE(t > batch.cu_seqlens[d] && batch.inputs[t] == 1) << "BOS stands first";
      }
      std::int32_t last = batch.cu_seqlens[d + 1] - 1;
      if (batch.inputs[last] == 2) {
        ASSERT_EQ(batch.labels[last], kIgnoreLabel) << "no label crosses into the next document";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LoaderModes,
                         ::testing::Values(Settings{"pack", SequenceMode::kPack},
                                           Settings{"pack_boundaries", SequenceMode::kPack, false, false, true},
                                           Settings{"pad", SequenceMode::kPad},
                                           Settings{"pad_split", SequenceMode::kPad, false, true, true},
                                           Settings{"pad_fitted", SequenceMode::kPad, true, false, true},
                                           Settings{"sft", SequenceMode::kSft, false, false, true},
                                           Settings{"sft_fitted", SequenceMode::kSft, true}));

/// The state is small for all data. Other data refuse it and name the differences.
TEST_F(LoaderTest, AnyChangeIsRefusedByItsName) {
  DatasetOptions base{.sources = {}, .sequence_length = 16, .shuffle_window = 50};
  base.template_text = std::string(5000, 'x') + "{text}";
  for (int i = 0; i < 60; ++i) base.sources.push_back({"s3://corpus/0.jsonl", 1.0 / 3 + i});
  auto open = [&](const DatasetOptions& options, std::string fingerprint = "bytes") {
    return Dataset::Open(connection_, std::make_shared<ByteTokenizer>(1, 2, std::move(fingerprint)), options, {})
        .value();
  };
  dataset_ = open(base);
  LoaderState state = Start({})->state();
  state.epoch = state.samples = UINT64_MAX;
  EXPECT_LT(state.Serialize().size(), 1000u);
  state.epoch = 3, state.samples = 8;
  EXPECT_TRUE(Loader::Start(dataset_, budget_, {}, state).has_value());
  using Change = std::pair<std::string, std::function<void(DatasetOptions&)>>;
  for (const auto& [name, change] :
       std::vector<Change>{{"objects", [](auto& o) { o.sources[7].url = "s3://corpus/1.jsonl"; }},
                           {"weights", [](auto& o) { o.sources[7].weight += 0.001; }},
                           {"template", [](auto& o) { o.template_text += "."; }},
                           {"mode", [](auto& o) { o.mode = SequenceMode::kPad; }},
                           {"boundaries", [](auto& o) { o.boundaries = true; }},
                           {"length", [](auto& o) { o.sequence_length = 17; }},
                           {"seed", [](auto& o) { o.shuffle_seed = 2; }},
                           {"window", [](auto& o) { o.shuffle_window = 51; }}}) {
    DatasetOptions options = base;
    change(options);
    auto refused = Loader::Start(open(options), budget_, {}, state);
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), Code::kPreconditionFailed);
    EXPECT_NE(refused.error().message().find("other data: " + name + " differ"), std::string::npos)
        << refused.error().ToString();
  }
  auto refused = Loader::Start(open(base, "other"), budget_, {}, state);
  EXPECT_NE(refused.error().message().find("tokenizer differ"), std::string::npos);
}

class LoaderFaults : public LoaderTest {
 protected:
  void SetUp() override {
    LoaderTest::SetUp();
    batches_ = dataset_->samples_per_epoch() / 8 + 4;
    expected_ = Expected(8, batches_);
    clock_.AdvanceOnSleep(true);
    faults_ = object::FaultStore::Create(store_);
    connection_["corpus"] = faults_;
    dataset_ =
        Dataset::Open(
            connection_, std::make_shared<ByteTokenizer>(),
            {.sources = {{"s3://corpus/*.jsonl", 1.0}}, .sequence_length = 16, .shuffle_window = 50, .clock = &clock_},
            {})
            .value();
  }
  FakeClock clock_;
  std::shared_ptr<object::FaultStore> faults_;
  std::uint64_t batches_ = 0;
  std::vector<BatchRow> expected_;
};

TEST_F(LoaderFaults, ErrorsAndResetsChangeNothing) {
  faults_->Add(
      {.operation = object::Operation::kGet, .times = -1, .probability = 0.5, .fault = {.code = Code::kUnavailable}});
  faults_->Add({.operation = object::Operation::kGet, .times = 3, .fault = {.cut_after = 1000}});
  faults_->Add({.operation = object::Operation::kGet, .times = 3, .fault = {.code = Code::kDeadlineExceeded}});
  EXPECT_EQ(Read({.micro_batch = 2, .threads = 3}, batches_), expected_);
}

TEST_F(LoaderFaults, AStoreThatIsGoneForALongTimeDelaysOnly) {
  TimePoint began = clock_.Now();
  faults_->Add({.operation = object::Operation::kGet, .times = 60, .fault = {.code = Code::kUnavailable}});
  EXPECT_EQ(Read({.micro_batch = 2, .threads = 2}, batches_), expected_);
  EXPECT_GT(clock_.Now() - began, std::chrono::seconds(30));
}

TEST_F(LoaderFaults, ALastingFailureEndsAndLeavesAStateToGoOnFrom) {
  auto loader = Start({.prefetch_batches = 1, .threads = 1});
  std::vector<BatchRow> rows;
  for (int b = 0; b < 3 * 8; ++b) Append(loader->Next().value(), rows);
  LoaderState state = loader->state();
  loader.reset();
  faults_->Add({.operation = object::Operation::kGet, .times = -1, .fault = {.code = Code::kUnavailable}});
  TimePoint began = clock_.Now();
  loader = Start({.threads = 2}, state);
  auto failed = loader->Next();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kUnavailable);
  EXPECT_NE(failed.error().ToString().find("start again at the last state"), std::string::npos)
      << failed.error().ToString();
  EXPECT_NE(failed.error().ToString().find("jsonl"), std::string::npos) << "the object is named";
  EXPECT_GE(clock_.Now() - began, std::chrono::minutes(10));
  EXPECT_EQ(loader->state(), state);
  faults_->Clear();
  auto rest = Read({}, batches_ - 3, loader->state());
  rows.insert(rows.end(), rest.begin(), rest.end());
  EXPECT_EQ(rows, expected_);
}

TEST(StageTrace, TellsWhatAThreadDidBetweenTwoMoments) {
  FakeClock clock;
  StageTrace trace(clock);
  TimePoint began = clock.Now();
  auto ms = [](int n) { return std::chrono::milliseconds(n); };
  clock.Advance(ms(5));
  {
    ScopedStage pack(&trace, LoadStage::kPack);
    clock.Advance(ms(1));
    ScopedStage tokenize(&trace, LoadStage::kTokenize);
    {
      ScopedStage network(&trace, LoadStage::kNetwork);
      clock.Advance(ms(40));
    }
    {
      ScopedStage parse(&trace, LoadStage::kParse);
      clock.Advance(ms(2));
    }
    clock.Advance(ms(7));
  }
  clock.Advance(ms(3));
  using Spent = std::array<Duration, kLoadStages>;
  EXPECT_EQ(trace.Within(began, clock.Now()), (Spent{ms(40), ms(2), ms(7), ms(9)}));
  EXPECT_EQ(trace.Within(began + ms(16), began + ms(47)), (Spent{ms(30), ms(1), ms(0), ms(0)}));
  EXPECT_EQ(trace.Within(began, began + ms(4)), (Spent{ms(0), ms(0), ms(0), ms(4)}));
  EXPECT_EQ(trace.Within(clock.Now(), clock.Now() + ms(6)), (Spent{ms(0), ms(0), ms(0), ms(6)}));
}

/// The consumer's wait counts for the stage in which its batch was made. Here only one stage takes time.
TEST_F(LoaderFaults, AWaitIsAccountedToItsStage) {
  struct Slow final : ByteTokenizer {
    explicit Slow(Clock& c) : clock(c) {}
    Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
      clock.SleepFor(std::chrono::milliseconds(1));
      return ByteTokenizer::Encode(text, ids);
    }
    Clock& clock;
  };
  auto run = [&](std::shared_ptr<const tokenizer::Tokenizer> tokenizer) {
    dataset_ = Dataset::Open(connection_, std::move(tokenizer),
                             {.sources = {{"s3://corpus/*.jsonl", 1.0}},
                              .sequence_length = 64,
                              .mode = SequenceMode::kPad,
                              .clock = &clock_},
                             {})
                   .value();
    auto loader = Start({.micro_batch = 8, .prefetch_batches = 1, .threads = 1});
    for (int b = 0; b < 4; ++b) EXPECT_TRUE(loader->Next().has_value());
    return loader->stats();
  };
  auto stats = run(std::make_shared<Slow>(clock_));
  EXPECT_EQ(stats.waited_on[static_cast<std::size_t>(LoadStage::kTokenize)], stats.waited);
  faults_->Add(
      {.operation = object::Operation::kGet, .times = -1, .fault = {.latency = std::chrono::milliseconds(40)}});
  stats = run(std::make_shared<ByteTokenizer>());
  EXPECT_EQ(stats.waited_on[static_cast<std::size_t>(LoadStage::kNetwork)], stats.waited);
}

/// Row 0 has both answers, row 1 long ones that are cut at half of the row, row 2 a prompt that leaves no answer.
TEST_F(LoaderTest, APairsAnswersAreDocumentsOfOneRow) {
  const std::string longest(20, 'p');
  PutText(*store_, "pairs.jsonl",
          DumpJson({{"prompt", "ab"}, {"chosen", "cd"}, {"rejected", "e"}}) + "\n" +
              DumpJson({{"prompt", "ab"}, {"chosen", "cdefghijklmn"}, {"rejected", "opqrstuvwxyz"}}) + "\n" +
              DumpJson({{"prompt", longest}, {"chosen", "a"}, {"rejected", "b"}}) + "\n");
  const DatasetOptions options{.sources = {{"s3://corpus/pairs.jsonl", 1.0}},
                               .sequence_length = 16,
                               .objective = Objective::kDpo,
                               .shuffle_window = 0};
  const auto dataset = Dataset::Open(connection_, std::make_shared<ByteTokenizer>(), options, {}).value();
  const auto loader = Loader::Start(dataset, budget_, {.global_batch = 3, .micro_batch = 3, .threads = 1}, {}).value();
  const Batch batch = loader->Next().value();
  EXPECT_EQ(batch.row_labels, (std::vector<std::int32_t>{0, 0, kIgnoreLabel}));
  EXPECT_EQ(batch.loss_rows, 2u);
  EXPECT_EQ(batch.loss_tokens, 0u);
  EXPECT_TRUE(batch.segments.empty());
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 6, 11, 16, 24, 32, 40, 48}));
  // BOS a b c d EOS, BOS a b e EOS; a byte's token is the byte plus 3.
  const auto id = [](char c) { return static_cast<TokenId>(c) + 3; };
  const TokenId bos = 1, eos = 2, none = kIgnoreLabel;
  const auto row = [](const std::vector<TokenId>& all, std::size_t r) {
    return std::vector<TokenId>(all.begin() + 16 * r, all.begin() + 16 * (r + 1));
  };
  EXPECT_EQ(row(batch.inputs, 0), (std::vector<TokenId>{bos, id('a'), id('b'), id('c'), id('d'), eos, bos, id('a'),
                                                        id('b'), id('e'), eos, eos, eos, eos, eos, eos}));
  EXPECT_EQ(row(batch.labels, 0), (std::vector<TokenId>{none, none, id('c'), id('d'), eos, none, none, none, id('e'),
                                                        eos, none, none, none, none, none, none}));
  EXPECT_EQ(row(batch.labels, 1),
            (std::vector<TokenId>{none, none, id('c'), id('d'), id('e'), id('f'), id('g'), none, none, none, id('o'),
                                  id('p'), id('q'), id('r'), id('s'), none}));
  EXPECT_EQ(std::ranges::count(row(batch.labels, 2), none), 16);
  EXPECT_EQ(batch.answers, (std::vector<std::int32_t>{0, 1, -1, 2, 3, 4, 5}));
}

/// The documents of a batch of pairs, with their labels, by answer.
std::vector<std::pair<std::vector<TokenId>, std::vector<TokenId>>> AnswersOf(const Batch& batch) {
  std::vector<std::pair<std::vector<TokenId>, std::vector<TokenId>>> answers(2 * batch.row_labels.size());
  for (std::size_t i = 0; i < batch.answers.size(); ++i) {
    if (batch.answers[i] < 0) continue;
    const auto part = [&](const std::vector<TokenId>& all) {
      return std::vector<TokenId>(all.begin() + batch.cu_seqlens[i], all.begin() + batch.cu_seqlens[i + 1]);
    };
    answers[static_cast<std::size_t>(batch.answers[i])] = {part(batch.inputs), part(batch.labels)};
  }
  return answers;
}

/// There are four pairs, of 11, 8, 8 and 20 tokens. Two of them share a row. Packing does not change their documents.
TEST_F(LoaderTest, PairsShareRows) {
  std::string lines;
  for (const auto& [prompt, chosen, rejected] : std::vector<std::array<const char*, 3>>{
           {"ab", "cd", "e"}, {"a", "b", "c"}, {"x", "y", "z"}, {"ab", "cdefghijklmn", "opqrstuvwxyz"}}) {
    lines += DumpJson({{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}) + "\n";
  }
  PutText(*store_, "pairs.jsonl", lines);
  DatasetOptions options{.sources = {{"s3://corpus/pairs.jsonl", 1.0}},
                         .sequence_length = 20,
                         .objective = Objective::kDpo,
                         .shuffle_window = 0};
  const auto batch_of = [&](int rows) {
    const auto dataset = Dataset::Open(connection_, std::make_shared<ByteTokenizer>(), options, {}).value();
    EXPECT_EQ(dataset->samples_per_epoch(), static_cast<std::uint64_t>(rows));
    EXPECT_EQ(dataset->truncated_documents(), 0u);
    return Loader::Start(dataset, budget_, {.global_batch = rows, .micro_batch = rows, .threads = 1}, {})
        .value()
        ->Next()
        .value();
  };
  const Batch alone = batch_of(4);
  options.best_fit = true;
  const Batch together = batch_of(3);
  EXPECT_EQ(together.cu_seqlens, (std::vector<std::int32_t>{0, 10, 20, 26, 31, 35, 39, 40, 44, 48, 58, 60}))
      << "padding is no document that is longer than an answer may be";
  EXPECT_EQ(together.answers, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, -1, 6, 7, -1, -1}));
  EXPECT_EQ(together.row_labels, (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(together.loss_rows, 4u);
  auto want = AnswersOf(alone), got = AnswersOf(together);
  std::ranges::sort(want);
  std::ranges::sort(got);
  EXPECT_EQ(got, want);
  for (std::size_t i = 0; i + 1 < together.cu_seqlens.size(); ++i) {
    EXPECT_EQ(together.positions[static_cast<std::size_t>(together.cu_seqlens[i])], 0);
  }
}

}  // namespace
}  // namespace millrace::data
