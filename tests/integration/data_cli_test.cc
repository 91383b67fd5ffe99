// `millrace tokenizer` and `millrace data` as a script sees them: exit status, standard output, standard error.
#include <gmock/gmock.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "tests/support/program.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::Ran;

class DataCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(program_.available());
    WriteCorpus("a.jsonl", 1);
    WriteCorpus("b.jsonl", 2);
    model_ = folder_ / "tokenizer.model";
  }

  void WriteCorpus(const std::string& name, std::uint64_t seed) {
    static const char* const kWords[] = {"bucket", "stream", "token", "record", "index",
                                         "数据",   "训练",   "of",    "the",    "7"};
    Random random(seed);
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      std::string text;
      for (std::uint64_t n = 5 + random.Below(60); n > 0; --n) text += std::string(kWords[random.Below(10)]) + " ";
      lines += DumpJson({{"title", fmt::format("{} {}", name, i)}, {"text", text}}) + "\n";
    }
    Write("corpus/" + name, lines);
  }
  void Write(const std::string& name, std::string_view text) { program_.Write(name, text); }

  Ran Run(std::vector<std::string> arguments, std::string_view input = "") {
    return program_.Run(std::move(arguments), {}, input);
  }
  void TrainTokenizer() {
    auto trained = Run({"tokenizer", "train", "--input", "corpus/*.jsonl", "--template", "{title}\\n{text}",
                        "--vocab-size", "320", "--output", model_});
    ASSERT_EQ(trained.exit, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("320 pieces from 120 documents"));
  }

  testing_support::Program program_;
  const std::filesystem::path folder_ = program_.folder();
  std::string model_;
};

TEST_F(DataCliTest, TokenizerTrainsEncodesDecodesAndShows) {
  TrainTokenizer();
  std::string document = "the 数据 of\n<s> \"x\"";
  auto encoded = Run({"tokenizer", "encode", "--model", model_, "--json"}, DumpJson({{"text", document}}) + "\n");
  ASSERT_EQ(encoded.exit, 0) << encoded.err;
  auto decoded = Run({"tokenizer", "decode", "--model", model_, "--json"}, encoded.out);
  ASSERT_EQ(decoded.exit, 0) << decoded.err;
  EXPECT_EQ(decoded.objects().at(0)["text"], document);

  auto plain = Run({"tokenizer", "encode", "--model", model_}, "the bucket\n\nof");
  EXPECT_EQ(Split(plain.out, '\n').size(), 4u) << "a line for every document, empty ones too";
  EXPECT_EQ(Run({"tokenizer", "decode", "--model", model_}, plain.out).out, "the bucket\n\nof\n");

  auto shown = Run({"tokenizer", "show", "--model", model_, "--pieces", "--json"}).objects();
  ASSERT_EQ(shown.size(), 321u);
  EXPECT_EQ(shown[0]["kind"], "sentencepiece-bpe");
  EXPECT_EQ(shown[2]["piece"], "<s>");
}

TEST_F(DataCliTest, TokenizerEncodesManyLinesInOrder) {
  constexpr int kLines = 40'000, kBroken = 30'000;  // some batches
  TrainTokenizer();
  std::string lines, objects;
  for (int i = 0; i < kLines; ++i) {
    lines += fmt::format("the bucket {}\n", i);
    objects += i == kBroken ? "{}\n" : fmt::format("{{\"text\": \"{}\"}}\n", i);
  }
  auto encoded = Run({"tokenizer", "encode", "--model", model_}, lines);
  ASSERT_EQ(encoded.exit, 0) << encoded.err;
  EXPECT_EQ(Run({"tokenizer", "decode", "--model", model_}, encoded.out).out, lines);
  auto broken = Run({"tokenizer", "encode", "--model", model_, "--json"}, objects);
  EXPECT_EQ(broken.exit, 2);
  EXPECT_THAT(broken.err, HasSubstr(fmt::format("line {}", kBroken + 1)));
  EXPECT_EQ(Split(broken.out, '\n').size(), kBroken + 2u) << "what is in front of it, the error and the end";
}

TEST_F(DataCliTest, TokenizerSaysWhatIsWrong) {
  TrainTokenizer();
  EXPECT_EQ(Run({"tokenizer", "show", "--model", "none.model"}).exit, 4);
  Write("broken.model", "not a model");
  auto broken = Run({"tokenizer", "show", "--model", "broken.model"});
  EXPECT_EQ(broken.exit, 2);
  EXPECT_THAT(broken.err, HasSubstr("not a SentencePiece model"));
  auto foreign = Run({"tokenizer", "decode", "--model", model_}, "5 6\n99999\n");
  EXPECT_EQ(foreign.exit, 2);
  EXPECT_THAT(foreign.err, HasSubstr("line 2: token 99999"));
  EXPECT_THAT(Run({"tokenizer", "decode", "--model", model_}, "five\n").err, HasSubstr("\"five\" is not a token id"));
  EXPECT_THAT(Run({"tokenizer", "encode", "--model", model_, "--json"}, "{\"txt\": 1}\n").err, HasSubstr("line 1"));
  EXPECT_EQ(Run({"tokenizer", "train", "--input", "none/*.jsonl", "--output", "x"}).exit, 4);
  EXPECT_EQ(Run({"tokenizer", "train", "--input", "corpus/", "--output", "x", "--vocab-size", "10"}).exit, 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
}

TEST_F(DataCliTest, IndexPlanAndCatAgree) {
  TrainTokenizer();
  const std::vector<std::string> data = {
      "corpus/*.jsonl", "--template", "{title}\\n{text}", "--tokenizer", model_, "--sequence-length", "64", "--json"};
  auto with = [&](std::vector<std::string> command, std::vector<std::string> more = {}) {
    command.insert(command.end(), data.begin(), data.end());
    command.insert(command.end(), more.begin(), more.end());
    return Run(command);
  };
  auto indexed = with({"data", "index"});
  ASSERT_EQ(indexed.exit, 0) << indexed.err;
  EXPECT_EQ(indexed.objects().at(0)["records"], 120);
  std::uint64_t tokens = indexed.objects()[0]["tokens"].get<std::uint64_t>() + 2 * 120;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "corpus/.millrace"));

  auto plan = with({"data", "plan"}, {"--global-batch", "4"}).objects().at(0);
  EXPECT_EQ(plan["samples_per_epoch"], (tokens - 1) / 64);
  EXPECT_EQ(plan["steps_per_epoch"], (tokens - 1) / 64 / 4);
  EXPECT_EQ(plan["tokens_per_step"], 256);

  auto samples = with({"data", "cat"}, {"--start", "1", "--count", "2"}).objects();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0]["sample"], 1);
  EXPECT_EQ(samples[0]["inputs"].size(), 64u);
  EXPECT_EQ(samples[0]["labels"][63], samples[1]["inputs"][0]) << "samples are neighbours in one stream";
  auto beyond = with({"data", "cat"}, {"--start", "1000000"});
  EXPECT_EQ(beyond.exit, 2);
}

TEST_F(DataCliTest, TakesAJobFileAndItsOverrides) {
  TrainTokenizer();
  Write("job.yaml", "name: t\nmodel: {family: llama}\ndata:\n  sources: [{url: \"" + (folder_ / "corpus/").string() +
                        "\"}]\n  tokenizer: " + model_ +
                        "\n  sequence_length: 32\ntrain: {epochs: 2, global_batch: 4}\nrun: {launcher: local}\n");
  auto plan = Run({"data", "plan", "job.yaml", "--set", "data.sequence_length=16", "--json"});
  ASSERT_EQ(plan.exit, 0) << plan.err;
  Json line = plan.objects().at(0);
  EXPECT_EQ(line["tokens_per_step"], 64);
  EXPECT_EQ(line["steps"], 2 * line["steps_per_epoch"].get<std::uint64_t>());
  auto wrong = Run({"data", "plan", "job.yaml", "--set", "data.sequence_lenght=16"});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_THAT(wrong.err, HasSubstr("sequence_length"));
}

TEST_F(DataCliTest, CatShowsWhereTokensEndAndWhatIsMasked) {
  TrainTokenizer();
  Write("one/a.jsonl", "{\"text\":\"of the\"}\n");
  auto shown =
      Run({"data", "cat", "one/", "--tokenizer", model_, "--mode", "pad", "--sequence-length", "40", "--tokens"});
  ASSERT_EQ(shown.exit, 0) << shown.err;
  EXPECT_THAT(shown.out, ::testing::MatchesRegex("--- sample 0\n<s>│▁of│.*│</s>│‹</s> ×[0-9]+›\n"));
}

TEST_F(DataCliTest, InspectSaysWhatAFolderHasThatIsNoData) {
  Write("set/train.jsonl", "{\"text\":\"fine\"}\n");
  Write("set/dataset_info.json", "{}");
  Write("set/state.json", "{}");
  auto shown = Run({"data", "inspect", "set/"});
  ASSERT_EQ(shown.exit, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("left out, because their names say that they hold no records: dataset_info.json, "
                                   "state.json\n"));
  auto lines = Run({"data", "inspect", "set/", "--json"}).objects();
  EXPECT_THAT(lines[1]["event"], "left_out");
  EXPECT_EQ(lines[1]["urls"].size(), 2u);
  EXPECT_THAT(Run({"data", "inspect", "set/train.jsonl"}).out, ::testing::Not(HasSubstr("left out")));
}

TEST_F(DataCliTest, InspectNamesEveryBrokenRecord) {
  Write("corpus/c.jsonl", "{\"text\":\"fine\"}\nnonsense\n{\"title\":\"no text\"}\n");
  auto inspected = Run({"data", "inspect", "corpus/", "--json", "--text", "--picture", "lengths.svg"});
  ASSERT_EQ(inspected.exit, 0) << inspected.err;
  auto lines = inspected.objects();
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_THAT(lines[2]["url"].get<std::string>(), HasSubstr("/corpus/c.jsonl"));
  EXPECT_EQ(lines[2]["records"], 1);
  EXPECT_THAT(lines[2]["broken"],
              ElementsAre(Json{{"offset", 16}, {"place", "at byte 16"}, {"reason", "not_json"}},
                          Json{{"offset", 25}, {"place", "at byte 25"}, {"reason", "missing_field"}}));
  EXPECT_EQ(lines[3]["broken"], 2);
  EXPECT_EQ(lines[4]["event"], "missing_fields");
  EXPECT_EQ(lines[4]["records"], 1);
  EXPECT_THAT(lines[4]["missing"], ElementsAre("text"));
  EXPECT_THAT(lines[4]["present"], ElementsAre("title"));
  EXPECT_EQ(lines[5]["of"], "bytes");
  EXPECT_EQ(lines[5]["count"], 121);
  EXPECT_EQ(lines[6]["documents"], 121);
  EXPECT_THAT(ReadFile(folder_ / "lengths.svg").value(), HasSubstr("bytes a record"));
  EXPECT_EQ(Run({"data", "inspect", "nowhere/*.jsonl"}).exit, 4);
  EXPECT_EQ(Run({"data", "plan", "corpus/"}).exit, 2) << "packing needs a tokenizer";
}

}  // namespace
}  // namespace millrace
