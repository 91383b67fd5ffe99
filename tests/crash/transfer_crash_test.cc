// Kills `millrace cp` and `millrace sync` in the middle of large files and runs them again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "millrace/base/hash/random.h"
#include "millrace/object/hf/testing/hub_server.h"
#include "millrace/s3d/server.h"
#include "tests/support/program.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing_support::Ran;

constexpr std::uint64_t kPart = 5 * kMiB;
constexpr int kBlocksOfPart = 5;  // of 1 MiB, in the journal of a download
constexpr int kParts = 6;
constexpr std::uint64_t kSize = (kParts - 1) * kPart + 12'345;

class TransferCrash : public testing::Test {
 protected:
  void SetUp() override {
    if (!program_.available()) GTEST_SKIP() << "MILLRACE_BIN does not say where the program is";
    server_ = *s3d::Server::Start(
        {.root = folder_.path() / "s3d", .access_key = "key", .secret_key = "secret-of-the-test", .sync = false});
    ASSERT_TRUE(server_->CreateBucket("bucket"));
    program_.env().insert({{"AWS_ENDPOINT_URL", server_->endpoint()},
                           {"AWS_ACCESS_KEY_ID", "key"},
                           {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"},
                           {"AWS_REGION", "us-east-1"}});
    content_.resize(kSize);
    Random random(7);
    for (std::size_t i = 0; i + 8 <= content_.size(); i += 8) {
      std::uint64_t word = random.Next();
      std::memcpy(content_.data() + i, &word, 8);
    }
    program_.Write("in/file", content_);
  }

  std::vector<std::string> Command(std::vector<std::string> words) {
    words.insert(words.end(), {"--part-size", "5MiB", "--concurrency", "1", "--json"});
    return words;
  }
  /// Lets `parts` requests of the kind through, holds the next one, and kills the program there. `before`: how many
  /// parts there were.
  void RunAndKill(const std::vector<std::string>& words, const std::string& operation, int parts, int before = 0) {
    ASSERT_TRUE(server_->SetFaults(fmt::format("latency=60s,op={},skip={}", operation, parts)));
    Subprocess process = program_.Start(Command(words));
    auto arrived = [&] { return operation == "GetObject" ? PartsInJournal() : PartsInUpload(); };
    Deadline deadline = Deadline::After(SystemClock(), std::chrono::seconds(30));
    while (arrived() < before + parts && !deadline.Passed(SystemClock()) && !process.Poll()) {
      SystemClock().SleepFor(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(arrived(), before + parts);
    process.Signal(SIGKILL);
    process.Wait();
    ASSERT_TRUE(server_->SetFaults(""));
  }
  int PartsInJournal() {
    if (!fs::exists(program_.folder() / "out")) return 0;
    for (const auto& entry : fs::directory_iterator(program_.folder() / "out")) {
      if (entry.path().extension() != ".journal") continue;
      std::string text = ReadFile(entry.path()).value_or("");
      // A line for each block of a part, behind the plan.
      return (static_cast<int>(std::ranges::count(text, '\n')) - 1) / kBlocksOfPart;
    }
    return 0;
  }
  /// Of the one upload under way. The endpoint keeps each part as a file.
  int PartsInUpload() {
    int parts = 0;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path() / "s3d", error)) {
      parts += entry.is_regular_file(error) && entry.file_size(error) >= kPart;
    }
    return parts;
  }

  TempDir folder_ = std::move(*TempDir::Create());
  testing_support::Program program_;
  std::unique_ptr<s3d::Server> server_;
  std::string content_;
};

TEST_F(TransferCrash, AKilledDownloadMovesNoFinishedPartAgain) {
  ASSERT_EQ(program_.Run(Command({"cp", "in/file", "s3://bucket/d/file"})).exit, 0);
  Random random(1);
  int done = 0;
  while (done < kParts - 1) {  // again and again, a little further each time; what is there is not asked for again
    int more = std::min(1 + static_cast<int>(random.Below(2)), kParts - 1 - done);
    RunAndKill({"sync", "s3://bucket/d", "out"}, "GetObject", more, done);
    done += more;
    EXPECT_FALSE(fs::exists(program_.folder() / "out/file"));
  }
  Ran ran = program_.Run(Command({"sync", "s3://bucket/d", "out"}));
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().back()["resumed_bytes"], static_cast<std::uint64_t>(done) * kPart);
  EXPECT_TRUE(program_.Read("out/file") == content_);
  EXPECT_EQ(std::distance(fs::directory_iterator(program_.folder() / "out"), {}), 1) << "no temporary file stays";
}

TEST_F(TransferCrash, AKilledUploadMovesNoFinishedPartAgain) {
  RunAndKill({"sync", "in", "s3://bucket/u"}, "UploadPart", 3);
  EXPECT_TRUE(program_.Run({"ls", "-r", "--json", "s3://bucket/u"}).lines().size() <= 1);
  Ran ran = program_.Run(Command({"sync", "in", "s3://bucket/u"}));
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().back()["resumed_bytes"], 3 * kPart);
  EXPECT_TRUE(program_.Run({"cat", "s3://bucket/u/file"}).out == content_);
}

TEST_F(TransferCrash, AKilledCopyFromTheHubAsksForNoStoredPartAgain) {
  const auto hub = *object::hf::testing::HubServer::Start({});
  hub->Commit("models/o/m", {{"file", content_}});
  program_.env().insert({{"HF_ENDPOINT", hub->url()}, {"HF_HOME", (program_.folder() / "no-token-here").string()}});
  // Returns the parts that the hub's storage was asked for since the last call, in order.
  std::size_t seen = 0;
  auto asked = [&] {
    std::vector<std::uint64_t> parts;
    const auto requests = hub->seen();
    for (; seen < requests.size(); ++seen) {
      if (requests[seen].storage) parts.push_back(std::stoull(requests[seen].range.substr(6)) / kPart);  // "bytes="
    }
    return parts;
  };
  auto parts_from = [](int first, int end) {
    std::vector<std::uint64_t> parts;
    for (int part = first; part < end; ++part) parts.push_back(static_cast<std::uint64_t>(part));
    return parts;
  };
  const std::vector<std::string> copy = {"cp", "hf://o/m/file", "s3://bucket/m/file"};
  Random random(2);
  int done = 0;
  while (done < kParts - 1) {
    const int more = std::min(1 + static_cast<int>(random.Below(2)), kParts - 1 - done);
    RunAndKill(copy, "UploadPart", more, done);
    // It may have asked for the part that the endpoint held, too.
    const std::vector<std::uint64_t> parts = asked();
    EXPECT_TRUE(parts == parts_from(done, done + more) || parts == parts_from(done, done + more + 1))
        << ::testing::PrintToString(parts) << " from part " << done << " on";
    done += more;
    EXPECT_EQ(program_.Run({"ls", "-r", "--json", "s3://bucket/"}).lines().size(), 0u);
  }
  Ran ran = program_.Run(Command(copy));
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(asked(), parts_from(done, kParts));
  EXPECT_EQ(ran.objects().back()["resumed_bytes"], static_cast<std::uint64_t>(done) * kPart);
  EXPECT_TRUE(program_.Run({"cat", "s3://bucket/m/file"}).out == content_);
}

TEST_F(TransferCrash, AChangedSourceStartsOver) {
  RunAndKill({"cp", "in/file", "s3://bucket/u/file"}, "UploadPart", 3);
  content_[5] ^= 1;
  program_.Write("in/file", content_);
  Ran ran = program_.Run(Command({"cp", "in/file", "s3://bucket/u/file"}));
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().back()["resumed_bytes"], 0);
  EXPECT_TRUE(program_.Run({"cat", "s3://bucket/u/file"}).out == content_);

  RunAndKill({"cp", "s3://bucket/u/file", "out/file"}, "GetObject", 2);
  content_[9] ^= 1;
  program_.Write("in/file", content_);
  ASSERT_EQ(program_.Run(Command({"cp", "in/file", "s3://bucket/u/file"})).exit, 0);
  ran = program_.Run(Command({"cp", "s3://bucket/u/file", "out/file"}));
  ASSERT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(ran.objects().back()["resumed_bytes"], 0);
  EXPECT_TRUE(program_.Read("out/file") == content_);
}

}  // namespace
}  // namespace millrace
