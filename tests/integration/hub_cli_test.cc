// `millrace` over hf:// URLs: from the hub to folders, to a bucket, and into the commands that read models and data.
#include <gmock/gmock.h>

#include "millrace/base/hash/random.h"
#include "millrace/object/hf/testing/hub_server.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using object::hf::testing::FileContents;
using object::hf::testing::HubServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Ran;

std::string Noise(std::size_t size) {
  std::string text(size, '\0');
  Random random(size);
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

class HubCliTest : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped()) return;
    auto hub = HubServer::Start({.page_files = 2, .token = "hf_secret"});
    ASSERT_TRUE(hub) << hub.error().ToString();
    hub_ = *std::move(hub);
    hub_->Commit("models/o/m", files_);
    program_.env()["HF_ENDPOINT"] = hub_->url();
    program_.env()["HF_HOME"] = (work() / "no-token-here").string();
  }

  // Longer than a part, so that it moves in several; small and in a folder; empty.
  const FileContents files_ = {{"config.json", "{}"}, {"model.safetensors", Noise(9'000'000)}, {"sub/empty", ""}};
  std::unique_ptr<HubServer> hub_;
};

TEST_F(HubCliTest, FromTheHubToAFolderAndToABucket) {
  EXPECT_THAT(Keys("hf://o/m/"), ElementsAre("config.json", "model.safetensors", "sub/empty"));
  Ran listed = Millrace({"ls", "hf://o/m/"});
  EXPECT_THAT(listed.out, HasSubstr("sub/"));
  EXPECT_EQ(Millrace({"cat", "hf://o/m/config.json"}).out, "{}");
  EXPECT_THAT(Millrace({"head", "hf://o/m/model.safetensors"}).out, HasSubstr("sha256"));

  Ran copied = Millrace({"cp", "-r", "hf://o/m/", "model/"});
  ASSERT_EQ(copied.exit, 0) << copied.err;
  Ran synced = Millrace({"sync", "hf://o/m@main/", "s3://bucket/model/"});
  ASSERT_EQ(synced.exit, 0) << synced.err;
  ASSERT_EQ(Millrace({"cp", "-r", "s3://bucket/model/", "back/"}).exit, 0);
  for (const auto& [path, content] : files_) {
    EXPECT_TRUE(Local("model/" + path) == content) << path;
    EXPECT_TRUE(Local("back/" + path) == content) << path;
  }
  // Nothing moves twice.
  for (const char* there : {"model/", "s3://bucket/model/"}) {
    Ran again = Millrace({"sync", "--json", "hf://o/m/", there});
    ASSERT_EQ(again.exit, 0) << again.err;
    EXPECT_EQ(again.objects().back()["unchanged"], 3) << again.out;
  }
  Ran same = Millrace({"sync", "--json", "--checksum", "hf://o/m/", "model/"});
  EXPECT_EQ(same.objects().back()["unchanged"], 3) << same.out;
}

TEST_F(HubCliTest, AWrongHashLeavesNothing) {
  hub_->SetFaults([](const HubServer::Seen& seen) {
    return seen.target.contains("/api/models/") ? HubServer::Fault::kNone : HubServer::Fault::kDamage;
  });
  for (const char* file : {"config.json", "model.safetensors"}) {
    for (const std::string& there : {std::string("there/"), std::string("s3://bucket/there/")}) {
      Ran copied = Millrace({"cp", std::string("hf://o/m/") + file, there});
      EXPECT_NE(copied.exit, 0) << file << " to " << there;
      EXPECT_THAT(copied.err, HasSubstr("do not have the")) << file;
      EXPECT_THAT(copied.err, HasSubstr(file));
    }
  }
  EXPECT_EQ(Local("there/config.json"), "<absent>");
  EXPECT_THAT(LocalFiles("."), ElementsAre());
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre());
}

TEST_F(HubCliTest, ADownloadThatFailedIsContinued) {
  // There are nine parts and eight requests at once. So when the last part is asked for, another one is there.
  hub_->SetFaults([](const HubServer::Seen& seen) {
    return seen.range.starts_with("bytes=8388608-") ? HubServer::Fault::kUnavailable : HubServer::Fault::kNone;
  });
  const std::vector<std::string> copy = {"cp", "--json", "--part-size", "1MiB", "hf://o/m/model.safetensors", "model"};
  EXPECT_NE(Millrace(copy, {{"AWS_MAX_ATTEMPTS", "2"}}).exit, 0);
  EXPECT_EQ(Local("model"), "<absent>");
  hub_->SetFaults({});
  Ran resumed = Millrace(copy);
  ASSERT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_TRUE(Local("model") == files_.at("model.safetensors"));
  EXPECT_GE(resumed.objects().back().value("resumed_bytes", 0), 1 << 20) << resumed.out;
}

/// Returns the offsets that the storage was asked for by the requests from the `first` on.
std::vector<std::uint64_t> OffsetsAsked(const HubServer& hub, std::size_t first) {
  std::vector<std::uint64_t> offsets;
  const auto seen = hub.seen();
  for (std::size_t i = first; i < seen.size(); ++i) {
    if (seen[i].storage) offsets.push_back(std::stoull(seen[i].range.substr(std::string("bytes=").size())));
  }
  return offsets;
}

TEST_F(HubCliTest, ACopyToTheBucketThatFailedIsContinued) {
  const FileContents files = {{"model.safetensors", Noise(22'000'000)}};  // four parts of 5 MiB and a rest
  hub_->Commit("models/o/m", files);
  // In the middle a part cannot be had; one after the other, so that the parts before it are in the bucket.
  const std::vector<std::string> copy = {
      "cp", "--json", "--concurrency", "1", "--part-size", "5MiB", "hf://o/m/model.safetensors", "s3://bucket/model"};
  for (const std::uint64_t fails : {5 * kMiB, 15 * kMiB}) {
    hub_->SetFaults([range = fmt::format("bytes={}-", fails)](const HubServer::Seen& seen) {
      return seen.range.starts_with(range) ? HubServer::Fault::kUnavailable : HubServer::Fault::kNone;
    });
    EXPECT_NE(Millrace(copy, {{"AWS_MAX_ATTEMPTS", "2"}}).exit, 0);
    EXPECT_THAT(Keys("s3://bucket/"), ElementsAre());
  }
  hub_->SetFaults({});
  // Meanwhile the branch has another commit, with the same file.
  hub_->Commit("models/o/m", {{"README.md", "# A model"}, {"model.safetensors", files.at("model.safetensors")}});
  const std::size_t before = hub_->seen().size();
  Ran resumed = Millrace(copy);
  ASSERT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_THAT(OffsetsAsked(*hub_, before), ElementsAre(15 * kMiB, 20 * kMiB)) << "only what the bucket does not have";
  EXPECT_EQ(resumed.objects().back().value("resumed_bytes", 0u), 15 * kMiB) << resumed.out;
  EXPECT_TRUE(Millrace({"cat", "s3://bucket/model"}).out == files.at("model.safetensors"));
}

TEST_F(HubCliTest, ACopyOfAFileThatChangedAtTheHubStartsOver) {
  std::string content = Noise(12'000'000);
  hub_->Commit("models/o/m", {{"model.safetensors", content}});
  const std::vector<std::string> copy = {"sync",        "--json", "--concurrency", "1",
                                         "--part-size", "5MiB",   "hf://o/m/",     "s3://bucket/m/"};
  auto last_part_fails = [](const HubServer::Seen& seen) {
    return seen.range.starts_with("bytes=10485760-") ? HubServer::Fault::kUnavailable : HubServer::Fault::kNone;
  };
  hub_->SetFaults(last_part_fails);
  EXPECT_NE(Millrace(copy, {{"AWS_MAX_ATTEMPTS", "2"}}).exit, 0);
  hub_->SetFaults({});
  content[7] = static_cast<char>(content[7] ^ 1);
  hub_->Commit("models/o/m", {{"model.safetensors", content}});
  const std::size_t before = hub_->seen().size();
  Ran again = Millrace(copy);
  ASSERT_EQ(again.exit, 0) << again.err;
  EXPECT_THAT(OffsetsAsked(*hub_, before), ElementsAre(0, 5 * kMiB, 10 * kMiB));
  EXPECT_EQ(again.objects().back().value("resumed_bytes", 1u), 0u) << again.out;
  EXPECT_TRUE(Millrace({"cat", "s3://bucket/m/model.safetensors"}).out == content);

  // A wrong byte in what a resumed run still reads: the hash of the whole file finds it.
  content[8] = static_cast<char>(content[8] ^ 1);
  hub_->Commit("models/o/m", {{"model.safetensors", content}});
  hub_->SetFaults(last_part_fails);
  const std::vector<std::string> other = {
      "cp", "--concurrency", "1", "--part-size", "5MiB", "hf://o/m/model.safetensors", "s3://bucket/other"};
  EXPECT_NE(Millrace(other, {{"AWS_MAX_ATTEMPTS", "2"}}).exit, 0);
  hub_->SetFaults(
      [](const HubServer::Seen& seen) { return seen.storage ? HubServer::Fault::kDamage : HubServer::Fault::kNone; });
  Ran damaged = Millrace(other);
  EXPECT_NE(damaged.exit, 0);
  EXPECT_THAT(damaged.err, HasSubstr("do not have the SHA-256"));
  EXPECT_THAT(Keys("s3://bucket/"), ElementsAre("m/model.safetensors"));
}

TEST_F(HubCliTest, TheHubIsNotWrittenTo) {
  WriteLocal("file", "x");
  std::filesystem::create_directory(work() / "mnt");
  const std::vector<std::vector<std::string>> writes = {
      {"cp", "file", "hf://o/m/"},          {"sync", ".", "hf://o/m/"}, {"mv", "hf://o/m/config.json", "here"},
      {"rm", "hf://o/m/config.json"},       {"cp", "-", "hf://o/m/x"},  {"cp", "hf://o/m/config.json", "hf://o/m/b"},
      {"mount", "hf://o/m", work() / "mnt"}};
  for (const auto& arguments : writes) {
    Ran ran = Millrace(arguments);
    EXPECT_NE(ran.exit, 0) << arguments[0] << ": " << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("only read from")) << arguments[0];
    EXPECT_THAT(ran.err, HasSubstr("hf://o/m")) << arguments[0];
  }
  EXPECT_EQ(Local("here"), "<absent>");
}

TEST_F(HubCliTest, TokensAndGates) {
  hub_->SetAccess("models/o/m", HubServer::Access::kGated);
  Ran refused = Millrace({"cat", "hf://o/m/config.json"});
  EXPECT_EQ(refused.exit, 5);
  EXPECT_THAT(refused.err, HasSubstr(hub_->url() + "/o/m"));
  EXPECT_THAT(refused.err, HasSubstr("HF_TOKEN"));
  EXPECT_EQ(Millrace({"cat", "hf://o/m/config.json"}, {{"HF_TOKEN", "hf_secret"}}).out, "{}");
  WriteLocal("home/token", "hf_secret\n");
  Ran logged = Millrace({"--log-level", "debug", "cp", "hf://o/m/model.safetensors", "model"},
                        {{"HF_HOME", (work() / "home").string()}});
  EXPECT_EQ(logged.exit, 0);
  EXPECT_THAT(logged.err, Not(HasSubstr("hf_secret")));
  for (const HubServer::Seen& seen : hub_->seen()) {
    if (seen.storage) {
      EXPECT_EQ(seen.authorization, "");
    }
  }
}

TEST_F(HubCliTest, AllRanksOfAJobReadOneCommit) {
  const std::string model = hub_->Commit("models/o/m", {{"config.json", "{}"}}, "v1");
  const std::string data = hub_->Commit("datasets/o/d", {{"a.jsonl", "{}"}});
  const std::string pinned(40, 'a');
  WriteLocal("job.yaml", fmt::format(R"(name: tested
model: {{from: "hf://o/m@v1/"}}
data:
  sources: [{{url: "hf://datasets/o/d/*.jsonl#train"}}, {{url: "@hf://datasets/o/d/list"}}, {{url: "s3://bucket/d/"}}]
  tokenizer: "hf://o/m@{}/tokenizer.model"
train: {{steps: 1}}
)",
                                     pinned));
  WriteLocal("rank.sh", "#!/bin/sh\ncat \"$1\"\n");
  std::filesystem::permissions(work() / "rank.sh", std::filesystem::perms::owner_all);
  Ran ran = Millrace({"job", "run", "job.yaml", "--program", work() / "rank.sh", "--no-check"},
                     {{"MILLRACE_STATE_DIR", work() / "state"}});
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("reads hf://o/m@v1 at " + model));
  for (const std::string& url : {"hf://o/m@" + model + "/", "hf://datasets/o/d@" + data + "/*.jsonl#train",
                                 "@hf://datasets/o/d@" + data + "/list", "hf://o/m@" + pinned + "/tokenizer.model",
                                 std::string("s3://bucket/d/")}) {
    EXPECT_THAT(ran.out, HasSubstr("\"" + url + "\""));
  }
  EXPECT_EQ(hub_->seen().size(), 2u) << "a request for each branch, none for a commit";
}

TEST_F(HubCliTest, TokenizersAndDataAreReadInPlace) {
  std::string records;
  for (int i = 0; i < 200; ++i) records += fmt::format("{{\"text\": \"the mill turns {} times\"}}\n", i * 7919 % 997);
  hub_->Commit("datasets/o/corpus", {{"README.md", "# Corpus"}, {"data/train-00000-of-00001.jsonl", records}});
  ASSERT_EQ(Millrace({"tokenizer", "train", "--input", "hf://datasets/o/corpus/#train", "--vocab-size", "300",
                      "--output", "t.model"})
                .exit,
            0);
  hub_->Commit("models/o/words", {{"tokenizer.model", Local("t.model")}});
  Ran there = Millrace({"tokenizer", "encode", "--model", "hf://o/words/tokenizer.model"}, {}, "the mill turns");
  Ran here = Millrace({"tokenizer", "encode", "--model", "t.model"}, {}, "the mill turns");
  ASSERT_EQ(there.exit, 0) << there.err;
  EXPECT_EQ(there.out, here.out);
  Ran tokenized = Millrace({"data", "tokenize", "hf://datasets/o/corpus/", "--tokenizer",
                            "hf://o/words/tokenizer.model", "--output", "s3://bucket/tokens"});
  ASSERT_EQ(tokenized.exit, 0) << tokenized.err;
  WriteLocal("corpus.jsonl", records);
  ASSERT_EQ(Millrace({"data", "tokenize", "corpus.jsonl", "--tokenizer", "t.model", "--output", "tokens"}).exit, 0);
  EXPECT_EQ(Millrace({"cat", "s3://bucket/tokens.bin"}).out, Local("tokens.bin"));
}

}  // namespace
}  // namespace millrace
