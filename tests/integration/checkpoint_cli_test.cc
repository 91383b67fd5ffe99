// `millrace ckpt` and `millrace doctor` as a script sees them: exit status, standard output, standard error.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/base/files.h"
#include "millrace/base/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/file/file_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::State;

class CheckpointCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* bin = std::getenv("MILLRACE_BIN");
    ASSERT_NE(bin, nullptr);
    program_ = std::filesystem::path(bin) / "millrace";
    root_ = directory_.path() / "run";
  }

  struct Output {
    int exit_code;
    std::string out, err;
    std::vector<Json> lines() const {
      std::vector<Json> lines;
      for (std::string_view line : Split(out, '\n'))
        if (!line.empty()) lines.push_back(ParseJson(line, "output").value());
      return lines;
    }
  };
  Output Run(std::vector<std::string> arguments, std::map<std::string, std::string> env = {}) {
    arguments.insert(arguments.begin(), program_.string());
    const auto errors = directory_.path() / "stderr";
    std::filesystem::remove(errors);
    env.emplace("AWS_CONFIG_FILE", "/dev/null");
    env.emplace("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    env.emplace("AWS_EC2_METADATA_DISABLED", "true");
    auto output = Subprocess::Run({.argv = arguments,
                                   .env = env,
                                   .unset_env = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"},
                                   .stderr_file = errors});
    EXPECT_TRUE(output);
    return {output->state.exit_code, output->stdout_text, ReadFile(errors).value_or("")};
  }
  void Save(std::uint64_t step, const State& state, const Json& meta) {
    testing::ThreadRanks ranks(2);
    MemoryBudget budget(64 * kMiB);
    auto shares = state.Share(2, step);
    std::vector<std::unique_ptr<Writer>> writers;
    for (int rank = 0; rank < 2; ++rank) {
      Writer::Options options;
      options.url = root_;
      options.retention.keep_last = 10;
      options.chunk_bytes = 4096;
      writers.push_back(*Writer::Open(connection_, ranks.Rank(rank), budget, options));
      ASSERT_TRUE(writers.back()->Save(step, shares[rank], meta));
    }
    for (auto& writer : writers) ASSERT_TRUE(writer->Wait());
  }
  void SaveThree() {
    for (std::uint64_t step : {1, 2, 3}) Save(step, state_, {{"model_config", {{"model_type", "llama"}}}});
  }

  TempDir directory_ = *TempDir::Create();
  std::filesystem::path program_;
  std::string root_;
  const State state_ = State::Random(1);
  testing::StoreConnection connection_{*object::OpenFileStore({.root = "/", .durable = false, .threads = 2})};
};

TEST_F(CheckpointCliTest, ListsAndShows) {
  SaveThree();
  auto listed = Run({"ckpt", "ls", root_, "--json"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  std::vector<int> steps;
  for (const Json& line : listed.lines()) {
    steps.push_back(line["step"]);
    EXPECT_EQ(line["ranks"], 2);
    EXPECT_EQ(line["tensors"], state_.tensors.size());
    EXPECT_GT(line["bytes"], 0);
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
  EXPECT_THAT(Run({"ckpt", "ls", root_}).out, HasSubstr("STEP"));

  auto shown = Run({"ckpt", "show", root_, "--step", "2", "--json"}).lines();
  ASSERT_EQ(shown.size(), 1 + state_.tensors.size());
  EXPECT_EQ(shown[0]["step"], 2);
  EXPECT_EQ(shown[0]["meta"]["model_config"]["model_type"], "llama");
  EXPECT_EQ(shown[1]["tensor"], "model/t0");
  EXPECT_THAT(Run({"ckpt", "show", root_}).out, HasSubstr("step-00000003"));
}

TEST_F(CheckpointCliTest, VerifiesAndNamesDamage) {
  SaveThree();
  auto good = Run({"ckpt", "verify", root_, "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  ASSERT_EQ(good.lines().size(), 1u);
  EXPECT_EQ(good.lines()[0]["step"], 3);
  EXPECT_GT(good.lines()[0]["chunks"], 1);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--json", "--all"}).lines().size(), 3u);

  for (const auto& file : std::filesystem::recursive_directory_iterator(root_ + "/step-00000002")) {
    if (!file.path().string().ends_with("rank-00001.safetensors")) continue;
    auto fd = *OpenFile(file.path(), O_RDWR);
    std::byte byte;
    ASSERT_TRUE(ReadExactly(fd.get(), {&byte, 1}, 5000, "file"));
    byte ^= std::byte{4};
    ASSERT_TRUE(WriteFully(fd.get(), {&byte, 1}, 5000, "file"));
  }
  EXPECT_EQ(Run({"ckpt", "verify", root_}).exit_code, 0) << "the newest is whole";
  for (auto arguments : {std::vector<std::string>{"--step", "2"}, std::vector<std::string>{"--all"}}) {
    arguments.insert(arguments.begin(), {"ckpt", "verify", root_});
    auto bad = Run(arguments);
    EXPECT_EQ(bad.exit_code, 1);
    EXPECT_THAT(bad.err, HasSubstr("rank-00001.safetensors: bytes 4096 to"));
  }
}

TEST_F(CheckpointCliTest, ExportsTheModelOnly) {
  SaveThree();
  const std::string folder = directory_.path() / "exported";
  auto exported = Run({"ckpt", "export", root_, folder});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  auto reader = OpenSafetensors(connection_, folder);
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().meta["model_config"]["model_type"], "llama");
  std::size_t models = 0;
  for (const auto& [name, tensor] : state_.tensors) {
    EXPECT_EQ((*reader)->manifest().tensors.contains(name), name.starts_with("model/"));
    if (!name.starts_with("model/")) continue;
    ++models;
    std::vector<std::byte> bytes(tensor.bytes.size());
    ASSERT_TRUE((*reader)->Read(name, 0, bytes));
    EXPECT_TRUE(bytes == tensor.bytes);
  }
  EXPECT_EQ((*reader)->manifest().tensors.size(), models);

  auto imported = Run({"ckpt", "import", folder, root_, "--step", "9"});
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--json"}).lines().at(0)["step"], 9);
  auto again = Reader::Open(connection_, root_, 9);
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ((*again)->manifest().tensors, (*reader)->manifest().tensors);
  EXPECT_EQ((*again)->manifest().meta, (*reader)->manifest().meta);
  EXPECT_EQ(Run({"ckpt", "import", folder, root_, "--step", "9"}).exit_code, 1) << "it is there already";

  Save(10, state_, {});
  auto refused = Run({"ckpt", "export", root_, folder});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("model_config"));
}

TEST_F(CheckpointCliTest, CollectsOnlyWhenAsked) {
  SaveThree();
  auto steps = [&] { return Run({"ckpt", "ls", root_, "--json"}).lines().size(); };
  EXPECT_EQ(Run({"ckpt", "gc", root_}).exit_code, 0);
  EXPECT_EQ(steps(), 3u) << "without --keep-last nothing committed goes";
  auto dry = Run({"ckpt", "gc", root_, "--keep-last", "1", "--dry-run", "--json"}).lines();
  EXPECT_EQ(dry.at(0)["removed_steps"], Json({1, 2}));
  EXPECT_EQ(steps(), 3u);
  EXPECT_THAT(Run({"ckpt", "gc", root_, "--keep-last", "1"}).out, HasSubstr("removed step 2"));
  EXPECT_EQ(steps(), 1u);
}

TEST_F(CheckpointCliTest, SaysWhatIsWrong) {
  EXPECT_EQ(Run({"ckpt", "verify", root_}).exit_code, 4);
  EXPECT_THAT(Run({"ckpt", "verify", root_}).err, HasSubstr("no committed checkpoint"));
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "7"}).exit_code, 4);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "seven"}).exit_code, 2);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "7", "--all"}).exit_code, 2);
  EXPECT_EQ(Run({"ckpt", "verify"}).exit_code, 2);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--keep-last", "0"}).exit_code, 2);
  EXPECT_EQ(Run({"ckpt", "ls", "gopher://x"}).exit_code, 2);
  EXPECT_EQ(Run({"ckpt"}).exit_code, 2);
}

TEST_F(CheckpointCliTest, DoctorReportsAndKeepsSecrets) {
  const std::map<std::string, std::string> keys{{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"},
                                                {"AWS_SECRET_ACCESS_KEY", "very-secret-value"}};
  auto healthy = Run({"doctor", "--json", directory_.path()}, keys);
  EXPECT_EQ(healthy.exit_code, 0) << healthy.out;
  std::vector<std::string> checks;
  for (const Json& line : healthy.lines()) {
    checks.push_back(line["check"]);
    EXPECT_TRUE(line["level"] == "ok" || line["level"] == "warn") << line;
  }
  EXPECT_THAT(checks, ElementsAre("programs", "fuse", "disk", "memory", "limits", "cpu", "gpu", "credentials", "url"));

  auto broken = Run({"doctor", "s3://bucket", "--endpoint-url", "http://127.0.0.1:1"}, keys);
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.out, HasSubstr("does not answer"));
  EXPECT_THAT(healthy.out + broken.out + broken.err, Not(HasSubstr("very-secret-value")));
  EXPECT_EQ(Run({"doctor", root_ + "/nothing/here", "gopher://x"}).exit_code, 1);
}

}  // namespace
}  // namespace millrace::checkpoint
