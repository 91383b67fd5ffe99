#include "millrace/data/compact/compact.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "millrace/data/compact/compact_report.h"
#include "millrace/data/compact/shard_builder.h"
#include "millrace/data/documents/document_reader.h"
#include "millrace/data/testing/testing.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::data {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

class CompactTest : public ::testing::Test {
 protected:
  void SetUp() override {
    connection_["source"] = input_;
    connection_["target"] = output_;
  }
  CompactOptions Options() { return {.sources = {{"s3://source/d/"}}, .output = "s3://target/out/"}; }
  Result<CompactResult> Run(const CompactOptions& options) { return Compact(connection_, options, {}, {}); }
  Json Report(const CompactOptions& options) {
    auto run = Run(options);
    if (!run) ADD_FAILURE() << run.error().ToString();
    return run ? run->report : Json();
  }
  std::map<std::string, std::string> Output() {
    std::map<std::string, std::string> objects;
    auto listed = object::ListAll(*output_, {}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) {
        objects[info.key] = object::GetAll(*output_, info.key, kGiB).value().value().bytes;
      }
      return true;
    });
    EXPECT_TRUE(listed);
    return objects;
  }
  /// Returns the texts of the shards in their order, as a reader of the folder gets them.
  std::vector<std::string> Texts() {
    const std::vector<DataSource> sources = {{"s3://target/out/"}};
    const RecordTemplate record_template = RecordTemplate::Parse("{text}").value();
    auto reader = DocumentReader::Open(connection_, sources, record_template).value();
    std::vector<std::string> texts;
    std::string text;
    while (reader.Next(text).value()) texts.push_back(text);
    EXPECT_EQ(reader.broken(), 0u);
    return texts;
  }

  std::shared_ptr<object::Store> input_ = object::MakeMemoryStore();
  std::shared_ptr<object::Store> output_ = object::MakeMemoryStore();
  testing::TestConnection connection_;
};

TEST_F(CompactTest, MergesRecordsInOrder) {
  std::vector<std::string> texts;
  std::string lines;
  for (int f = 0; f < 60; ++f) {
    const auto some = MakeTexts(fmt::format("f{}", f), 20, 300, f + 1);
    texts.insert(texts.end(), some.begin(), some.end());
    PutText(*input_, fmt::format("d/{:03}.jsonl", f), ToJsonl(some));
    lines += ToJsonl(some);
  }
  auto options = Options();
  options.shard_bytes = 10'000;
  const Json report = Report(options);
  EXPECT_EQ(Texts(), texts);
  EXPECT_EQ(report["read"]["records"], 1200);
  EXPECT_EQ(report["read"]["objects"], 60);
  EXPECT_EQ(report["kept"]["bytes"], lines.size());
  EXPECT_TRUE(report["removed"].empty());
  const auto objects = Output();
  EXPECT_EQ(objects.size(), report["shards"].size() + 1) << "nothing is left but shards and the report";
  EXPECT_GT(report["shards"].size(), 15u);
  std::string joined;
  for (const Json& shard : report["shards"]) {
    const std::string& content = objects.at("out/" + shard["name"].get<std::string>());
    EXPECT_LE(content.size(), 10'000u);
    EXPECT_EQ(shard["bytes"], content.size());
    joined += content;
  }
  EXPECT_EQ(joined, lines) << "records keep their bytes";
  EXPECT_EQ(ParseJson(objects.at("out/report.json"), "report").value(), report);
}

TEST_F(CompactTest, CompressedShardsAreReadAgain) {
  const auto texts = MakeTexts("t", 3000, 4000, 1);
  PutText(*input_, "d/a.jsonl", ToJsonl(texts));
  for (const Compression compression : {Compression::kGzip, Compression::kZstd}) {
    auto options = Options();
    options.compression = compression;
    options.force = true;
    const Json report = Report(options);
    EXPECT_EQ(Texts(), texts);
    EXPECT_LT(report["shards"][0]["stored_bytes"], report["shards"][0]["bytes"]);
    EXPECT_EQ(Output().size(), 2u) << "shards of the other ending are replaced";
  }
}

TEST_F(CompactTest, StopsBeforeItsIndexTakesTooMuchMemory) {
  PutText(*input_, "d/a.jsonl", ToJsonl(MakeTexts("t", 3000, 300, 1)));
  auto options = Options();
  options.duplicates = DuplicateSearch::kNear;
  options.index_bytes = kMiB;
  const auto run = Run(options);
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(run.error().message(), HasSubstr("and --index-memory allows "));
  EXPECT_TRUE(Output().empty());
  options.index_bytes = 64 * kMiB;
  EXPECT_TRUE(Run(options));
}

TEST_F(CompactTest, KeepsTheLanguagesThatAreWanted) {
  if (const auto library = LanguageDetector::Open(); !library) GTEST_SKIP() << library.error().message();
  const std::string german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft in den Wald hinein.";
  const std::string french = "Le renard brun saute par-dessus le chien paresseux et s'enfuit dans la forêt.";
  PutText(*input_, "d/a.jsonl", ToJsonl({german, french, "ok"}));
  auto options = Options();
  options.languages = {"de", "nl"};
  const Json report = Report(options);
  EXPECT_THAT(Texts(), ElementsAre(german));
  EXPECT_EQ(report["removed"]["language"]["records"], 2);
  options.languages = {"de", "unknown"};
  options.force = true;
  Report(options);
  EXPECT_THAT(Texts(), ElementsAre(german, "ok"));
}

TEST_F(CompactTest, RemovesExactDuplicatesButTheFirst) {
  PutText(*input_, "d/a.jsonl",
          ToJsonl({"one", "two", "one"}) + "\n" +
              R"({"id": 9, "text": "two"})"
              "\n");
  PutText(*input_, "d/b.jsonl", ToJsonl({"three", "one", "Two"}));
  auto options = Options();
  options.duplicates = DuplicateSearch::kExact;
  const Json report = Report(options);
  EXPECT_THAT(Texts(), ElementsAre("one", "two", "three", "Two"));
  const Json& removed = report["removed"]["exact_duplicate"];
  EXPECT_EQ(removed["records"], 3);
  EXPECT_EQ(removed["examples"][1]["source"], "s3://source/d/a.jsonl");
  EXPECT_EQ(removed["examples"][1]["line"], 5) << "the blank line counts";
  EXPECT_EQ(removed["examples"][1]["earlier"], "s3://source/d/a.jsonl:2");
  EXPECT_EQ(removed["examples"][2]["source"], "s3://source/d/b.jsonl");
  EXPECT_EQ(removed["examples"][2]["line"], 2);
  EXPECT_THAT(CompactReportText(report), HasSubstr("s3://source/d/b.jsonl:2 = s3://source/d/a.jsonl:1: one"));
}

/// Texts of random words: copies with some words changed.
class NearTest : public CompactTest {
 protected:
  std::vector<std::string> RandomWords(std::size_t count) {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < count; ++i) words.push_back(fmt::format("w{}", random_.Below(100'000)));
    return words;
  }
  static std::string Join(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }
  Random random_{17};
};

TEST_F(NearTest, RemovesNearDuplicatesButTheFirst) {
  std::vector<std::string> texts, originals;
  for (int i = 0; i < 200; ++i) {
    auto words = RandomWords(300);
    originals.push_back(Join(words));
    texts.push_back(originals.back());
    words[random_.Below(300)] = "changed";  // 5 of 296 runs differ: a similarity of 0.966
    texts.push_back(Join(words) + ".");
    texts.push_back(originals.back());
  }
  PutText(*input_, "d/a.jsonl", ToJsonl(texts));
  auto options = Options();
  options.duplicates = DuplicateSearch::kNear;
  const Json report = Report(options);
  EXPECT_EQ(Texts(), originals);
  EXPECT_EQ(report["removed"]["exact_duplicate"]["records"], 200);
  EXPECT_EQ(report["removed"]["near_duplicate"]["records"], 200);
  const Json& example = report["removed"]["near_duplicate"]["examples"][1];
  EXPECT_EQ(example["line"], 5);
  EXPECT_EQ(example["earlier"], "s3://source/d/a.jsonl:4");
  EXPECT_NEAR(example["similarity"].get<double>(), 0.966, 0.06);
}

TEST_F(NearTest, KeepsTextsBelowTheThreshold) {
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    auto words = RandomWords(300);
    texts.push_back(Join(words));
    for (std::size_t at = 3; at < 300; at += 11) words[at] = "changed";  // a similarity of about 0.37
    texts.push_back(Join(words));
  }
  PutText(*input_, "d/a.jsonl", ToJsonl(texts));
  auto options = Options();
  options.duplicates = DuplicateSearch::kNear;
  EXPECT_EQ(Report(options)["kept"]["records"], 400);
}

TEST_F(NearTest, DoesNotDependOnThreads) {
  for (int f = 0; f < 30; ++f) {
    std::vector<std::string> texts;
    for (int i = 0; i < 60; ++i) {
      Random words_of(random_.Below(400));
      std::vector<std::string> words;
      for (std::uint64_t n = 20 + words_of.Below(60); n > 0; --n)
        words.push_back(fmt::format("w{}", words_of.Below(5000)));
      for (std::uint64_t n = random_.Below(3); n > 0; --n) words[random_.Below(words.size())] = "changed";
      texts.push_back(Join(words));
    }
    PutText(*input_, fmt::format("d/{:02}.jsonl", f), ToJsonl(texts) + "broken\n");
  }
  std::map<std::string, std::string> first;
  for (const int threads : {1, 2, 7}) {
    auto options = Options();
    options.duplicates = DuplicateSearch::kNear;
    options.min_chars = 100;
    options.shard_bytes = 50'000;
    options.compression = Compression::kZstd;
    options.force = true;
    options.threads = threads;
    const Json report = Report(options);
    EXPECT_GT(report["removed"]["near_duplicate"]["records"], 50);
    EXPECT_EQ(report["removed"]["broken"]["records"], 30);
    if (first.empty()) first = Output();
    EXPECT_EQ(Output(), first);
  }
}

TEST_F(CompactTest, FiltersSayWhatTheyRemoved) {
  PutText(*input_, "d/a.jsonl",
          ToJsonl({"kurz", "вода и камень", "a text of a sensible length", "水车磨面",
                   "this text is much longer than all the others are, and so it goes",
                   "the answer to the question is in the test"}) +
              "{\"text\": 7}\nnot JSON\n{\"title\": \"no text\"}\n");
  PutText(*input_, "h/test.jsonl", ToJsonl({"answer to the question"}));
  auto options = Options();
  options.min_chars = 5;
  options.max_chars = 50;
  options.scripts = {"Latin"};
  options.held_out = {{"s3://source/h/"}};
  options.held_out_words = 4;
  const Json report = Report(options);
  EXPECT_THAT(Texts(), ElementsAre("a text of a sensible length"));
  std::map<std::string, int> counts;
  for (const auto& [name, removal] : report["removed"].items()) counts[name] = removal["records"].get<int>();
  const std::map<std::string, int> expected = {
      {"broken", 2}, {"min_chars", 3}, {"max_chars", 1}, {"script", 1}, {"held_out", 1}};
  EXPECT_EQ(counts, expected);
  EXPECT_EQ(report["removed"]["broken"]["examples"][0]["broken"], "not_json");
  EXPECT_EQ(report["removed"]["broken"]["examples"][1]["broken"], "missing_field");
}

TEST_F(CompactTest, PatternsSayWhatIsWanted) {
  PutText(*input_, "d/a.jsonl",
          ToJsonl({"The mill turns.", "the MILL is\nclosed", "a wheel turns", "The mill turns\nat night",
                   "水车 mill turns"}));
  auto options = Options();
  options.match = {"(?i)mill", "turns"};
  options.reject = {"(?s)turns.*night", "^nothing$"};
  const Json report = Report(options);
  EXPECT_THAT(Texts(), ElementsAre("The mill turns.", "水车 mill turns"));
  EXPECT_EQ(report["removed"]["match"]["records"], 2);
  EXPECT_EQ(report["removed"]["reject"]["records"], 1);
  options.reject = {"a(b"};
  auto run = Run(options);
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(run.error().ToString(), HasSubstr("a(b"));
}

TEST_F(CompactTest, ReadsOtherFormats) {
  PutText(*input_, "d/a.csv", "title,text\nx,first\n");
  PutText(*input_, "d/b.json", R"([{"text": "second"}, {"text": "third", "n": [1, 2]}])");
  PutText(*input_, "d/c.txt", "fourth\n");
  PutText(*input_, "d/d.jsonl", "\xEF\xBB\xBF  {\"text\": \"fifth\"} \r\n");
  Report(Options());
  EXPECT_THAT(Texts(), ElementsAre("first", "second", "third", "fourth\n", "fifth"));
  EXPECT_THAT(Output()["out/shard-00000.jsonl"], HasSubstr(R"("title":"x")"));
}

TEST_F(CompactTest, DryRunWritesNothing) {
  PutText(*input_, "d/a.jsonl", ToJsonl({"one", "two", "one"}));
  auto options = Options();
  options.duplicates = DuplicateSearch::kExact;
  options.dry_run = true;
  options.output.clear();
  EXPECT_EQ(Report(options)["kept"]["records"], 2);
  options.output = "s3://target/out/";
  EXPECT_EQ(Report(options)["kept"]["records"], 2);
  EXPECT_TRUE(Output().empty());
}

TEST_F(CompactTest, NeverReplacesWhatItWasNotToldTo) {
  PutText(*input_, "d/a.jsonl", ToJsonl(MakeTexts("a", 100, 300, 1)));
  auto options = Options();
  options.shard_bytes = 5000;
  Report(options);
  const auto before = Output();
  auto again = Run(options);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kNotEmpty);
  EXPECT_THAT(again.error().ToString(), HasSubstr("--force"));
  EXPECT_EQ(Output(), before);

  options.shard_bytes = kMiB;
  options.force = true;
  EXPECT_EQ(Report(options)["shards"].size(), 1u);
  EXPECT_EQ(Output().size(), 2u) << "the other shards are gone";

  PutText(*output_, "out/notes.txt", "mine");
  EXPECT_THAT(Run(options).error().ToString(), HasSubstr("notes.txt"));
  EXPECT_EQ(Output().size(), 3u);
}

/// After a failure of any call, the folder has no report, or it is whole; and the next run ends well.
TEST_F(CompactTest, AStoppedRunLeavesNothingHalf) {
  std::vector<std::string> texts;
  for (int f = 0; f < 4; ++f) {
    const auto some = MakeTexts(fmt::format("f{}", f), 50, 300, f + 1);
    texts.insert(texts.end(), some.begin(), some.end());
    PutText(*input_, fmt::format("d/{}.jsonl", f), ToJsonl(some));
  }
  auto options = Options();
  options.shard_bytes = 8000;
  Report(options);
  const auto whole = Output();
  const auto inner = output_;
  int resumed = 0, failed = 0;
  for (const bool after_effect : {false, true}) {
    for (int calls = 0; calls < 40; ++calls) {
      for (const auto& [key, content] : Output()) ASSERT_TRUE(object::Delete(*inner, key));
      auto faulty = object::FaultStore::Create(inner);
      faulty->Add({.skip = calls, .times = -1, .fault = {.code = Code::kIo, .after_effect = after_effect}});
      connection_["target"] = faulty;
      const bool first = Run(options).has_value();
      failed += first ? 0 : 1;
      connection_["target"] = inner;
      const auto left = Output();
      if (left.contains("out/report.json")) {
        for (const auto& [key, content] : whole) ASSERT_EQ(left.at(key), content) << calls;
      }
      auto second = Run(options);
      if (first || (!second && second.error().code() == Code::kNotEmpty)) {
        // It failed behind its last write, or not at all.
        ASSERT_FALSE(second);
        ASSERT_EQ(second.error().code(), Code::kNotEmpty);
      } else {
        ASSERT_TRUE(second) << second.error().ToString();
        resumed += second->resumed ? 1 : 0;
      }
      ASSERT_EQ(Output(), whole) << calls;
    }
  }
  EXPECT_GT(failed, 30);
  EXPECT_GT(resumed, 5);
}

TEST_F(CompactTest, AFailureOfTheSourceIsReported) {
  for (int f = 0; f < 20; ++f) PutText(*input_, fmt::format("d/{:02}.jsonl", f), ToJsonl(MakeTexts("a", 50, 300, f)));
  auto faulty = object::FaultStore::Create(input_);
  faulty->Add(
      {.operation = object::Operation::kGet, .skip = 11, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  connection_["source"] = faulty;
  auto run = Run(Options());
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(run.error().ToString(), HasSubstr("s3://source/d/"));
  EXPECT_FALSE(Output().contains("out/report.json"));
}

TEST_F(CompactTest, StopsWhenAsked) {
  PutText(*input_, "d/a.jsonl", ToJsonl(MakeTexts("a", 50, 300, 1)));
  std::stop_source stop;
  stop.request_stop();
  auto run = Compact(connection_, Options(), {}, {}, {.stop = stop.get_token()});
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code(), Code::kCancelled);
  EXPECT_TRUE(Output().empty());
}

TEST_F(CompactTest, SaysWhatIsWrong) {
  PutText(*input_, "d/a.jsonl", ToJsonl({"one"}));
  auto expect = [&](const CompactOptions& options, std::string_view message) {
    auto run = Run(options);
    ASSERT_FALSE(run) << message;
    EXPECT_THAT(run.error().ToString(), HasSubstr(std::string(message)));
  };
  auto options = Options();
  options.output.clear();
  expect(options, "--output");
  options.output = "s3://target";
  expect(options, "name a folder in the bucket");
  options.output = "s3://source/d";
  expect(options, "s3://source/d/a.jsonl: lies in the output folder");
  options = Options();
  options.similarity = 0.3;
  expect(options, "not between 0.5 and 1");
  options = Options();
  options.shard_bytes = 2 * kGiB;
  expect(options, "up to 1 GiB");
  options = Options();
  options.min_chars = 9;
  options.max_chars = 8;
  expect(options, "at least 9 and at most 8");
  options = Options();
  options.scripts = {"Latn"};
  expect(options, "did you mean \"Latin\"?");
  options = Options();
  options.sources = {{"s3://source/absent/"}};
  EXPECT_EQ(Run(options).error().code(), Code::kNotFound);
  EXPECT_TRUE(Output().empty());
}

TEST(ShardBuilder, CutsBeforeTheSize) {
  ShardBuilder builder(10);
  EXPECT_FALSE(builder.Add("1234"));
  EXPECT_FALSE(builder.Add("1234"));
  EXPECT_EQ(builder.Add("1")->lines, "1234\n1234\n");
  EXPECT_EQ(builder.Add("a record that is longer")->lines, "1\n");
  const auto last = builder.Finish();
  EXPECT_EQ(last->lines, "a record that is longer\n");
  EXPECT_EQ(last->number, 2u);
  EXPECT_FALSE(builder.Finish());
  EXPECT_TRUE(IsShardName(ShardName(7, Compression::kGzip)));
  EXPECT_TRUE(IsShardName(ShardName(123'456, Compression::kNone)));
  for (const auto* name :
       {"shard-1.jsonl", "shard-00001.json", "shard-00001", "a/shard-00001.jsonl", "shard-x.jsonl"}) {
    EXPECT_FALSE(IsShardName(name)) << name;
  }
}

TEST(CompactReport, ExcerptsAreOneLine) {
  EXPECT_EQ(Excerpt("a\nb\tc"), "a b c");
  EXPECT_EQ(Excerpt(std::string(200, 'x')), std::string(60, 'x') + "…");
  std::string wide;
  for (int i = 0; i < 70; ++i) wide += "水";
  EXPECT_EQ(Excerpt(wide).size(), 61u * 3);
}

}  // namespace
}  // namespace millrace::data
