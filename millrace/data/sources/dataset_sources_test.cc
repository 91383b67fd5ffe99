// Tests data sets of all formats, broken records, and stored indexes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "millrace/data/documents/document_reader.h"
#include "millrace/data/index_builder.h"
#include "millrace/data/reading/sample_reader.h"
#include "millrace/data/testing/dataset_fixture.h"
#include "millrace/data/testing/stored_object.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::data {
namespace {

using testing::ByteTokenizer;
using testing::MakeTexts;
using testing::PutText;
using testing::ToJsonl;

using DatasetSourcesTest = testing::DatasetTest;

TEST_F(DatasetSourcesTest, BrokenRecordsAreSkippedAndCounted) {
  std::string lines = "\n  \nnot json\n" + testing::RecordLine("T", "one") + "{\"text\":\"no title\"}\n" +
                      testing::RecordLine("U", "two") + "{\"title\":\"\xFF\",\"text\":\"x\"}\n" +
                      "{\"title\":null,\"text\":\"x\"}";
  PutText(*store_, "a.jsonl", lines);
  auto options = Options("s3://corpus/a.jsonl", SequenceMode::kPad, 0);
  options.template_text = "{title}={text}";
  auto dataset = Open(options).value();
  EXPECT_EQ(dataset->records(), 2u);
  EXPECT_EQ(dataset->broken_records(), 4u);
  auto rows = Rows(*dataset, 0);
  EXPECT_EQ(tokenizer_->Decode(std::span(rows[0]).first(32)).value(), "T=one");
  EXPECT_EQ(tokenizer_->Decode(std::span(rows[1]).first(32)).value(), "U=two");

  DocumentForm form = DocumentForm::Make(options).value();
  auto resolved = ResolveSources(connection_, options.sources).value();
  auto indexes = LoadOrBuildIndexes(connection_, resolved.objects, {.form = &form}, {}).value();
  ASSERT_EQ(indexes[0].broken().size(), 4u);
  EXPECT_EQ(indexes[0].broken()[0], (BrokenLine{4, BrokenReason::kNotJson}));
  EXPECT_EQ(indexes[0].broken()[1].reason, BrokenReason::kMissingField);
  EXPECT_EQ(indexes[0].broken()[2].reason, BrokenReason::kNotUtf8);
  EXPECT_EQ(indexes[0].broken()[3].reason, BrokenReason::kNotText);
}

/// Borders of 4 MiB parts are inside lines, at their ends, and inside a line that is too long for a record.
TEST_F(DatasetSourcesTest, LinesAreFoundWhereverPartsMeet) {
  std::vector<std::string> texts;
  std::string lines;
  auto add = [&](std::size_t line_bytes) {
    std::string text = fmt::format("{}:", texts.size());
    text.resize(line_bytes - std::string_view("{\"text\":\"\"}\n").size(), 'a');
    lines += fmt::format("{{\"text\":\"{}\"}}\n", text);
    texts.push_back(text);
  };
  for (int i = 0; i < 100; ++i) add(42'001);
  add(4 * kMiB - lines.size() % (4 * kMiB));  // ends exactly where a part does
  add(100);
  add(6 * kMiB);  // spans a whole part
  add(100);
  lines += std::string(kMaxRecordBytes + 5 * kMiB, 'z') + "\n";
  add(100);
  PutText(*store_, "a.jsonl", lines);
  auto dataset = Open(Options("s3://corpus/a.jsonl", SequenceMode::kPad, 0)).value();
  EXPECT_EQ(dataset->records(), texts.size());
  EXPECT_EQ(dataset->broken_records(), 1u);
  RecordTemplate record_template = RecordTemplate::Parse("{text}").value();
  std::vector<DataSource> sources = {{"s3://corpus/a.jsonl"}};
  auto reader = DocumentReader::Open(connection_, sources, record_template).value();
  std::string document;
  for (const std::string& text : texts) {
    ASSERT_TRUE(reader.Next(document).value());
    ASSERT_EQ(document, text);
  }
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_EQ(reader.broken(), 1u);
  std::size_t i = 0;
  for (const auto& row : Rows(*dataset, 0)) {
    ASSERT_EQ(tokenizer_->Decode(std::span(row).first(32)).value(), texts[i].substr(0, 31)) << i;
    ++i;
  }
}

class IndexReuse : public testing::DatasetTest {
 protected:
  void SetUp() override {
    DatasetTest::SetUp();
    faults_ = object::FaultStore::Create(store_);
    connection_["corpus"] = faults_;
    PutText(*store_, "wiki/a.jsonl", ToJsonl(MakeTexts("a", 100, 50, 1)));
    PutText(*store_, "wiki/b.jsonl", ToJsonl(MakeTexts("b", 100, 50, 2)));
  }
  /// The ranged reads of Open, without those of the two indexes.
  std::uint64_t PartsRead() {
    std::uint64_t before = faults_->calls(object::Operation::kPut);
    EXPECT_TRUE(Open(Options("s3://corpus/wiki/")).has_value());
    return faults_->calls(object::Operation::kPut) - before;
  }
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    object::ListPage page = object::List(*store_, {}).value();
    for (const object::ObjectInfo& info : page.objects) keys.push_back(info.key);
    return keys;
  }
  std::shared_ptr<object::FaultStore> faults_;
};

TEST_F(IndexReuse, IsBuiltOncePerVersionAndView) {
  EXPECT_EQ(PartsRead(), 2u) << "indexes built";
  EXPECT_EQ(PartsRead(), 0u) << "found beside the data";
  EXPECT_EQ(Keys().size(), 4u);
  PutText(*store_, "wiki/b.jsonl", ToJsonl(MakeTexts("c", 50, 50, 3)));
  EXPECT_EQ(PartsRead(), 1u) << "another version of one object";
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 150u);
  tokenizer_ = std::make_shared<ByteTokenizer>(1, 2, "other");
  EXPECT_EQ(PartsRead(), 2u) << "another tokenizer";
}

TEST_F(IndexReuse, DamageIsRepaired) {
  EXPECT_EQ(PartsRead(), 2u);
  std::string index_key;
  for (const std::string& key : Keys()) {
    if (key.find(".millrace/") != key.npos) index_key = key;
  }
  std::string bytes = object::GetAll(*store_, index_key, kGiB).value()->bytes;
  bytes[bytes.size() / 2] ^= 1;
  PutText(*store_, index_key, bytes);
  EXPECT_EQ(PartsRead(), 1u);
  EXPECT_EQ(PartsRead(), 0u);
}

TEST_F(IndexReuse, ReadOnlyDataAreUsedAllTheSame) {
  faults_->Add({.operation = object::Operation::kPut, .times = -1, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 200u);
  EXPECT_EQ(Keys().size(), 2u);
  connection_["cache"] = object::MakeMemoryStore();
  auto options = Options("s3://corpus/wiki/");
  options.cache_url = "s3://cache/indexes";
  EXPECT_EQ(Open(options).value()->records(), 200u);
  EXPECT_EQ(object::List(*connection_["cache"], {.prefix = "indexes/index/"}).value().objects.size(), 2u);
}

TEST_F(IndexReuse, FailuresOfTheStoreSurfaceAndLeaveNothingWrong) {
  for (Code code : {Code::kUnavailable, Code::kPermissionDenied}) {
    for (int skip = 0; skip < 4; ++skip) {
      faults_->Clear();
      faults_->Add({.operation = object::Operation::kGet, .skip = skip, .fault = {.code = code}});
      auto opened = Open(Options("s3://corpus/wiki/"));
      if (!opened) {
        EXPECT_EQ(opened.error().code(), code);
      }
    }
  }
  faults_->Clear();
  EXPECT_EQ(Open(Options("s3://corpus/wiki/")).value()->records(), 200u);
}

TEST_F(IndexReuse, AChangeUnderARunIsNoticed) {
  auto dataset = Open(Options("s3://corpus/wiki/a.jsonl")).value();
  PutText(*store_, "wiki/a.jsonl", ToJsonl(MakeTexts("z", 100, 50, 1)));
  std::vector<TokenId> row(64);
  auto read = dataset->ReadSample(0, 0, std::span(row).first(32), std::span(row).last(32));
  EXPECT_EQ(read.error().code(), Code::kStale);
}

TEST_F(IndexReuse, ATokenizerThatCountsDifferentlyIsNoticed) {
  /// Claims to be the tokenizer that the index was made with.
  struct Liar final : ByteTokenizer {
    Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
      ids.push_back(5);
      return ByteTokenizer::Encode(text, ids);
    }
  };
  ASSERT_TRUE(Open(Options("s3://corpus/wiki/")).has_value());
  tokenizer_ = std::make_shared<Liar>();
  auto dataset = Open(Options("s3://corpus/wiki/")).value();
  std::vector<TokenId> row(64);
  auto read = dataset->ReadSample(0, 0, std::span(row).first(32), std::span(row).last(32));
  EXPECT_EQ(read.error().code(), Code::kCorrupt);
}

/// Announces the order of the files to a mount.
TEST_F(DatasetSourcesTest, SmallFilesAreAnnouncedOnceInTheOrderOfReading) {
  std::set<std::string> small;
  for (int i = 0; i < 50; ++i) {
    std::string key = fmt::format("d/small-{:02}.jsonl", i);
    PutText(*store_, key, fmt::format("{{\"text\":\"{}\"}}\n", std::string(200, static_cast<char>('a' + i % 26))));
    small.insert(std::move(key));
  }
  std::string large;
  for (int i = 0; i < 3'000; ++i) large += fmt::format("{{\"text\":\"{:0400}\"}}\n", i);
  PutText(*store_, "d/large.jsonl", large);
  auto store = object::FaultStore::Create(store_);
  connection_["corpus"] = store;
  auto dataset = *Open(Options("s3://corpus/d/"));
  auto reader = dataset->NewReader(dataset->reader_needs().best, 1);
  std::vector<TokenId> inputs(32), labels(32);
  auto read_epoch = [&](std::uint64_t epoch) {
    for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
      SequenceRow row{.inputs = inputs, .labels = labels};
      ASSERT_TRUE(reader->Read(epoch, i, row, {}).has_value());
    }
  };
  read_epoch(0);
  auto announced = store->announced();
  ASSERT_GE(announced.size(), small.size());
  announced.resize(small.size());  // what follows is of the next epoch
  EXPECT_EQ(std::set(announced.begin(), announced.end()), small);
  EXPECT_FALSE(std::ranges::is_sorted(announced));
}

/// The format of an object does not change its documents: without shuffling the tokens and their order are the same,
/// and with shuffling no document is lost. This also holds with a stored index.
TEST_F(DatasetSourcesTest, CompressionChangesNothing) {
  auto texts = MakeTexts("a", 3000, 6000, 3);
  std::string lines = ToJsonl(texts), plain;
  for (const std::string& text : texts) plain += text + "\n";
  PutText(*store_, "plain.jsonl", lines);
  PutText(*store_, "one.jsonl.gz", testing::Gzip(lines, 1));
  Random random(1);
  PutText(*store_, "many.jsonl.zst",
          testing::InPieces(random, lines, 1 << 20, [](std::string_view t) { return testing::Zstd(t, 1); }));
  PutText(*store_, "lines.txt", plain);
  auto stream = [&](std::string url, std::string format, std::uint64_t window) {
    DatasetOptions options = Options(std::move(url), SequenceMode::kPack, window);
    options.sources[0].format = std::move(format);
    options.sequence_length = 2048;
    auto dataset = Open(options).value();
    EXPECT_EQ(dataset->records(), texts.size());
    return Stream(*dataset, 0);
  };
  const std::vector<TokenId> expected = stream("s3://corpus/plain.jsonl", "", 0);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(stream("s3://corpus/one.jsonl.gz", "", 0), expected);
    EXPECT_EQ(stream("s3://corpus/many.jsonl.zst", "", 0), expected);
    EXPECT_EQ(stream("s3://corpus/lines.txt", "lines", 0), expected);
  }
  auto shuffled = Texts(stream("s3://corpus/one.jsonl.gz", "", 5000));
  std::set<std::string> all(texts.begin(), texts.end());
  EXPECT_GE(shuffled.size(), texts.size() - 1);
  shuffled.pop_back();
  for (const std::string& text : shuffled) EXPECT_TRUE(all.contains(text));
}

TEST_F(DatasetSourcesTest, AFolderIsReadForWhatHoldsRecords) {
  PutText(*store_, "set/a.jsonl", ToJsonl({"one"}));
  PutText(*store_, "set/sub/b.json.gz", testing::Gzip(ToJsonl({"two"})));
  for (std::string_view other : {"README.md", "dataset_info.json", "_SUCCESS", ".hidden", "sub/LICENSE"}) {
    PutText(*store_, fmt::format("set/{}", other), "not records");
  }
  EXPECT_EQ(Open(Options("s3://corpus/set/", SequenceMode::kPad)).value()->records(), 2u);
  EXPECT_EQ(Open(Options("s3://corpus/set/**", SequenceMode::kPad)).value()->records(), 2u);
  EXPECT_EQ(Open(Options("s3://corpus/set/*.md", SequenceMode::kPad)).error().code(), Code::kCorrupt) << "as asked for";
}

/// For all kinds of sources, and also if the caller stops before the end.
TEST_F(DatasetSourcesTest, DocumentsOfEveryFormatAreReadFrontToBack) {
  auto texts = MakeTexts("d", 2000, 6000, 5);
  std::string lines = ToJsonl(texts);
  std::size_t half = lines.find('\n', lines.size() / 2) + 1;
  PutText(*store_, "set/1.jsonl", lines.substr(0, half));
  PutText(*store_, "set/2.jsonl.gz", testing::Gzip(lines.substr(half), 1));
  PutText(*store_, "set/3.jsonl.zst", testing::Zstd("nonsense\n\n" + ToJsonl({"last"}), 1));
  texts.emplace_back("last");
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  std::vector<DataSource> sources = {{"s3://corpus/set/"}};
  auto reader = DocumentReader::Open(connection_, sources, form).value();
  std::string document;
  for (const std::string& text : texts) {
    ASSERT_TRUE(reader.Next(document).value());
    ASSERT_EQ(document, text);
  }
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_FALSE(reader.Next(document).value());
  EXPECT_EQ(reader.documents(), texts.size());
  EXPECT_EQ(reader.broken(), 1u);
  auto abandoned = DocumentReader::Open(connection_, sources, form).value();
  EXPECT_TRUE(abandoned.Next(document).value());
}

TEST_F(DatasetSourcesTest, ADamagedObjectFailsByNameAndTheOthersKeepTheirIndexes) {
  std::string packed = testing::Gzip(ToJsonl(MakeTexts("d", 300, 600, 5)));
  PutText(*store_, "set/a.jsonl.gz", packed);
  PutText(*store_, "set/z.jsonl.gz", packed.substr(0, packed.size() / 2));
  DatasetOptions options = Options("s3://corpus/set/", SequenceMode::kPad);
  options.threads = 1;  // one object after the other
  auto failed = Open(options);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), Code::kCorrupt);
  EXPECT_THAT(failed.error().ToString(),
              ::testing::HasSubstr(
                  fmt::format("s3://corpus/set/z.jsonl.gz: gzip data are cut off at byte {}", packed.size() / 2)));
  auto kept = object::List(*store_, {.prefix = "set/.millrace/"}).value().objects;
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_TRUE(kept[0].key.starts_with("set/.millrace/a.jsonl.gz."));
  RecordTemplate form = RecordTemplate::Parse("{text}").value();
  std::vector<DataSource> sources = {{"s3://corpus/set/z.jsonl.gz"}};
  auto reader = DocumentReader::Open(connection_, sources, form).value();
  std::string document;
  Result<bool> more = true;
  while (more && *more) more = reader.Next(document);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code(), Code::kCorrupt);
  EXPECT_EQ(reader.Next(document).error().code(), Code::kCorrupt) << "and stays so";
}

TEST_F(DatasetSourcesTest, GlobsAndBracesAreThoseOfFsspecAndShells) {
  for (const char* key : {"in/a.jsonl", "in/sub/b.jsonl", "in/sub/deep/c.jsonl", "in/x[1].jsonl", "s/08.jsonl",
                          "s/09.jsonl", "s/10.jsonl"}) {
    PutText(*store_, key, testing::RecordLine("T", "x"));
  }
  const auto keys = [&](std::string url) {
    const std::vector<DataSource> sources = {{.url = "s3://corpus/" + std::move(url)}};
    auto resolved = ResolveSources(connection_, sources);
    std::string found;
    if (!resolved) return resolved.error().ToString();
    for (const DataObject& object : resolved->objects) found += object.info.key + " ";
    return found;
  };
  EXPECT_EQ(keys("in/**/*.jsonl"), "in/a.jsonl in/sub/b.jsonl in/sub/deep/c.jsonl in/x[1].jsonl ");
  EXPECT_EQ(keys("in/*.jsonl"), "in/a.jsonl in/x[1].jsonl ");
  EXPECT_EQ(keys("in/*/*.jsonl"), "in/sub/b.jsonl ");
  EXPECT_EQ(keys("in/sub/**"), "in/sub/b.jsonl in/sub/deep/c.jsonl ");
  EXPECT_EQ(keys("in/[a-c].jsonl"), "in/a.jsonl ");
  EXPECT_EQ(keys("in/x[1].jsonl"), "in/x[1].jsonl ") << "an object with that name";
  EXPECT_EQ(keys("s/{08..10}.jsonl"), "s/08.jsonl s/09.jsonl s/10.jsonl ");
  EXPECT_THAT(keys("s/{10..9}.jsonl"), ::testing::HasSubstr("s/9.jsonl")) << "numbers without zeros are other names";
  EXPECT_EQ(keys("{in/a,s/10}.json{l,l}"), "in/a.jsonl s/10.jsonl ");
  EXPECT_THAT(keys("s/{a}.jsonl"), ::testing::HasSubstr("s/{a}.jsonl")) << "not braces of a shell";
  EXPECT_THAT(keys("s/{000000..999999}.jsonl"), ::testing::HasSubstr("more than 100000 objects"));
}

TEST_F(DatasetSourcesTest, CompressionThatANameHidesIsNamed) {
  PutText(*store_, "a.jsonl", testing::Gzip(testing::RecordLine("T", "x")));
  PutText(*store_, "b.txt", testing::Zstd("text"));
  PutText(*store_, "c.csv", "PK\x03\x04 and more");
  PutText(*store_, "d.jsonl", "BZh91AY&SY and more");
  const auto error = [&](const char* key) {
    return Open(Options(fmt::format("s3://corpus/{}", key))).error().ToString();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(error("a.jsonl"), ::testing::AllOf(HasSubstr("s3://corpus/a.jsonl"), HasSubstr("a format with +gzip")));
  EXPECT_THAT(error("b.txt"), HasSubstr("a format with +zstd"));
  EXPECT_THAT(error("c.csv"), HasSubstr("compressed by zip"));
  EXPECT_THAT(error("d.jsonl"), HasSubstr("compressed by bzip2"));
}

TEST_F(DatasetSourcesTest, AListNamesWhatIsRead) {
  for (std::string_view name : {"a", "b", "c"})
    PutText(*store_, fmt::format("set/{}.jsonl", name), ToJsonl({std::string(name)}));
  PutText(*store_, "set/list.txt", "# in this order\n\nc.jsonl\r\n  s3://corpus/set/a.jsonl \n?.jsonl\n");
  auto dataset = Open(Options("@s3://corpus/set/list.txt", SequenceMode::kPad, 0)).value();
  std::string order;
  for (const auto& row : Rows(*dataset, 0)) order += static_cast<char>(row[1] - 3);
  EXPECT_EQ(order, "cab");
  EXPECT_EQ(Open(Options("@s3://corpus/set/none.txt")).error().code(), Code::kNotFound);
  PutText(*store_, "set/bad.txt", "a.jsonl\nmissing.jsonl\n");
  EXPECT_THAT(Open(Options("@s3://corpus/set/bad.txt")).error().ToString(), ::testing::HasSubstr("missing.jsonl"));
}

TEST_F(DatasetSourcesTest, BrokenRecordsAreSkippedUpToALimitAndThenNamed) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += i % 2 ? "nonsense\n" : ToJsonl({fmt::format("text {}", i)});
  PutText(*store_, "a.jsonl", lines);
  PutText(*store_, "b.jsonl.gz", testing::Gzip(lines));
  DatasetOptions options = Options("s3://corpus/a.jsonl", SequenceMode::kPad);
  auto refused = Open(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kCorrupt);
  EXPECT_THAT(
      refused.error().ToString(),
      ::testing::HasSubstr("150 of 300 records cannot be used, and 100 are allowed: s3://corpus/a.jsonl at byte 18 "
                           "not_json; s3://corpus/a.jsonl at byte "));
  options.max_broken = 149;
  EXPECT_FALSE(Open(options).has_value()) << "the kept index counts as well";
  options.max_broken = 150;
  EXPECT_EQ(Open(options).value()->broken_records(), 150u);
  options.sources[0].url = "s3://corpus/b.jsonl.gz";
  options.max_broken = 0;
  EXPECT_THAT(Open(options).error().ToString(), ::testing::HasSubstr("at byte 18 of what it decodes to not_json"));
}

TEST_F(DatasetSourcesTest, SaysWhatIsWrongWithTheSources) {
  PutText(*store_, "a.jsonl", ToJsonl({"one", "two"}));
  PutText(*store_, "b.jsonl.bz2", "x");
  PutText(*store_, "broken.jsonl", "nonsense\n");
  EXPECT_EQ(Open(Options("s3://corpus/none.jsonl")).error().code(), Code::kNotFound);
  EXPECT_EQ(Open(Options("s3://corpus/none/*.jsonl")).error().code(), Code::kNotFound);
  EXPECT_EQ(Open(Options("s3://corpus/b.jsonl.bz2")).error().code(), Code::kUnsupported);
  EXPECT_EQ(Open(Options("s3://corpus/broken.jsonl")).error().code(), Code::kCorrupt);
  DatasetOptions none = Options("x");
  none.sources.clear();
  EXPECT_EQ(Open(none).error().code(), Code::kInvalidArgument);
  tokenizer_ = std::make_shared<ByteTokenizer>(1, tokenizer::kNoToken);
  EXPECT_EQ(Open(Options("s3://corpus/a.jsonl")).error().code(), Code::kInvalidArgument) << "packing needs EOS";
}

TEST_F(DatasetSourcesTest, TextsAndAnswersNeedAnEnd) {
  PutText(*store_, "a.jsonl",
          R"({"text": "one", "response": "two", "messages": [{"role": "user", "content": "a"}, )"
          R"({"role": "assistant", "content": "b"}]})"
          "\n");
  tokenizer_ = std::make_shared<ByteTokenizer>(1, tokenizer::kNoToken);
  const auto open = [&](SequenceMode mode, std::string layout) {
    DatasetOptions options = Options("s3://corpus/a.jsonl");
    options.mode = mode;
    options.layout = std::move(layout);
    options.sequence_length = 128;
    const auto opened = Open(options);
    return opened ? "" : opened.error().ToString();
  };
  for (const std::string layout : {"", "alpaca", "guanaco", "llama2", "zephyr"}) {
    EXPECT_THAT(open(SequenceMode::kSft, layout), ::testing::HasSubstr("name one as eos_token")) << layout;
  }
  EXPECT_THAT(open(SequenceMode::kPad, ""), ::testing::HasSubstr("name one as eos_token"));
  // These end an answer with a mark of their own.
  for (const std::string layout : {"llama3", "chatml", "gemma"})
    EXPECT_EQ(open(SequenceMode::kSft, layout), "") << layout;
}

TEST_F(DatasetSourcesTest, FingerprintFollowsContentNotPlace) {
  PutText(*store_, "a.jsonl", ToJsonl({"some text that fills a sequence of thirty-two tokens", "two"}));
  std::string base = Open(Options("s3://corpus/a.jsonl")).value()->fingerprint();
  EXPECT_EQ(Open(Options("s3://corpus/*.jsonl")).value()->fingerprint(), base);
  auto changed = [&](auto change) {
    DatasetOptions options = Options("s3://corpus/a.jsonl");
    change(options);
    return Open(options).value()->fingerprint();
  };
  EXPECT_NE(changed([](auto& o) { o.shuffle_seed = 9; }), base);
  EXPECT_NE(changed([](auto& o) { o.shuffle_window = 9; }), base);
  EXPECT_NE(changed([](auto& o) { o.sequence_length = 16; }), base);
  EXPECT_NE(changed([](auto& o) { o.mode = SequenceMode::kPad; }), base);
  EXPECT_NE(changed([](auto& o) { o.template_text = "{text}\n"; }), base);
  EXPECT_NE(changed([](auto& o) { o.sources[0].weight = 2; }), base);
  EXPECT_EQ(changed([](auto& o) { o.threads = 7; }), base);
  const auto by_size = [](auto& o) { o.same_by_size = true; };
  const std::string sized = changed(by_size);
  EXPECT_NE(sized, base);
  PutText(*store_, "a.jsonl", ToJsonl({"some text that fills a sequence of thirty-two tokens", "2.0"}));
  EXPECT_NE(Open(Options("s3://corpus/a.jsonl")).value()->fingerprint(), base);
  EXPECT_EQ(changed(by_size), sized);
  PutText(*store_, "a.jsonl", ToJsonl({"some text that fills a sequence of thirty-two tokens", "2.00"}));
  EXPECT_NE(changed(by_size), sized);
}

TEST_F(DatasetSourcesTest, CancellingStopsTheBuild) {
  PutText(*store_, "a.jsonl", ToJsonl(MakeTexts("a", 100, 50, 1)));
  std::stop_source stop;
  stop.request_stop();
  auto opened = Dataset::Open(connection_, tokenizer_, Options("s3://corpus/a.jsonl"), {}, {.stop = stop.get_token()});
  EXPECT_EQ(opened.error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace millrace::data
