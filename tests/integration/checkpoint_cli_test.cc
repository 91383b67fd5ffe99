// `millrace ckpt` and `millrace doctor` as a script sees them: exit status, standard output, standard error.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/local/file_store.h"
#include "tests/support/program.h"

namespace millrace::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::State;
using testing_support::Ran;

class CheckpointCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(program_.available());
    root_ = program_.folder() / "run";
  }

  Ran Run(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {}) {
    return program_.Run(std::move(arguments), env);
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
      ASSERT_TRUE(writers.back()->Save(step, shares[rank], DumpJson(meta)));
    }
    for (auto& writer : writers) ASSERT_TRUE(writer->Wait());
  }
  void SaveThree() {
    for (std::uint64_t step : {1, 2, 3}) Save(step, state_, {{"model_config", {{"model_type", "llama"}}}});
  }

  testing_support::Program program_;
  std::string root_;
  const State state_ = State::Random(1);
  testing::StoreConnection connection_{*object::OpenFileStore({.root = "/", .durable = false, .threads = 2})};
};

TEST_F(CheckpointCliTest, ListsAndShows) {
  SaveThree();
  auto listed = Run({"ckpt", "ls", root_, "--json"});
  EXPECT_EQ(listed.exit, 0) << listed.err;
  std::vector<int> steps;
  for (const Json& line : listed.objects()) {
    steps.push_back(line["step"]);
    EXPECT_EQ(line["ranks"], 2);
    EXPECT_EQ(line["tensors"], state_.tensors.size());
    EXPECT_GT(line["bytes"], 0);
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
  EXPECT_THAT(Run({"ckpt", "ls", root_}).out, HasSubstr("STEP"));

  auto shown = Run({"ckpt", "show", root_, "--step", "2", "--json"}).objects();
  ASSERT_EQ(shown.size(), 1 + state_.tensors.size());
  EXPECT_EQ(shown[0]["step"], 2);
  EXPECT_EQ(shown[0]["meta"]["model_config"]["model_type"], "llama");
  EXPECT_EQ(shown[1]["tensor"], "model/t0");
  EXPECT_THAT(Run({"ckpt", "show", root_}).out, HasSubstr("step-00000003"));
}

TEST_F(CheckpointCliTest, SaysWhoWroteItAndPins) {
  SaveThree();
  const auto listed = Run({"ckpt", "ls", root_, "--json"}).objects();
  EXPECT_FALSE(listed[0]["pinned"]);
  EXPECT_GE(listed[0]["age_s"], 0);
  EXPECT_TRUE(listed[0].contains("writer"));
  EXPECT_EQ(Run({"ckpt", "pin", root_, "1", "--reason", "the paper"}).exit, 0);
  EXPECT_TRUE(Run({"ckpt", "ls", root_, "--json"}).objects()[0]["pinned"]);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--keep-last", "1"}).exit, 0);
  EXPECT_EQ(Run({"ckpt", "ls", root_, "--json"}).objects().size(), 2u);
  EXPECT_EQ(Run({"ckpt", "unpin", root_, "1"}).exit, 0);
  EXPECT_EQ(Run({"ckpt", "unpin", root_, "1"}).exit, 4) << "not found";
  EXPECT_EQ(Run({"ckpt", "pin", root_, "2"}).exit, 4);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--keep-last", "1"}).exit, 0);
  EXPECT_EQ(Run({"ckpt", "ls", root_, "--json"}).objects().size(), 1u);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--after", "2", "--keep-last", "1"}).exit, 2) << "one or the other";
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--after", "3"}).exit, 0);
  EXPECT_EQ(Run({"ckpt", "ls", root_, "--json"}).objects().size(), 1u);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--after", "2"}).exit, 0);
  EXPECT_TRUE(Run({"ckpt", "ls", root_, "--json"}).objects().empty());
}

TEST_F(CheckpointCliTest, ShowsWhatDiffers) {
  Save(1, state_, {});
  State changed = state_;
  changed.tensors.at("model/t0").bytes[0] ^= std::byte{1};
  Save(2, changed, {});
  const auto diff = Run({"ckpt", "diff", root_, "1", "2", "--values", "--json"});
  EXPECT_EQ(diff.exit, 0) << diff.err;
  const auto lines = diff.objects();
  ASSERT_EQ(lines.size(), state_.tensors.size() + 1);
  EXPECT_EQ(lines[0]["tensor"], "model/t0");
  EXPECT_EQ(lines[0]["result"], "changed");
  EXPECT_EQ(lines[0]["elements"], 1);
  EXPECT_TRUE(lines[0].contains("max_change"));
  EXPECT_EQ(lines.back()["different"], 1);
  EXPECT_THAT(Run({"ckpt", "diff", root_, "1", "2"}).out, HasSubstr("model/t0: changed, 1 elements"));
}

TEST_F(CheckpointCliTest, VerifiesAndNamesDamage) {
  SaveThree();
  auto good = Run({"ckpt", "verify", root_, "--json"});
  EXPECT_EQ(good.exit, 0) << good.err;
  ASSERT_EQ(good.objects().size(), 1u);
  EXPECT_EQ(good.objects()[0]["step"], 3);
  EXPECT_GT(good.objects()[0]["chunks"], 1);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--json", "--all"}).objects().size(), 3u);

  for (const auto& file : std::filesystem::recursive_directory_iterator(root_ + "/step-00000002")) {
    if (!file.path().string().ends_with("rank-00001.safetensors")) continue;
    auto fd = *OpenFile(file.path(), O_RDWR);
    std::byte byte;
    ASSERT_TRUE(ReadExactly(fd.get(), {&byte, 1}, 5000, "file"));
    byte ^= std::byte{4};
    ASSERT_TRUE(WriteFully(fd.get(), {&byte, 1}, 5000, "file"));
  }
  EXPECT_EQ(Run({"ckpt", "verify", root_}).exit, 0) << "the newest is whole";
  for (auto arguments : {std::vector<std::string>{"--step", "2"}, std::vector<std::string>{"--all"}}) {
    arguments.insert(arguments.begin(), {"ckpt", "verify", root_});
    auto bad = Run(arguments);
    EXPECT_EQ(bad.exit, 1);
    EXPECT_THAT(bad.err, HasSubstr("rank-00001.safetensors: bytes 4096 to"));
  }
}

TEST_F(CheckpointCliTest, AManifestThatWasCutOffIsNamed) {
  SaveThree();
  std::filesystem::resize_file(std::filesystem::path(root_) / "step-00000002.json", 0);
  for (const char* json : {"", "--json"}) {
    std::vector<std::string> ls{"ckpt", "ls", root_}, verify{"ckpt", "verify", root_, "--all"};
    for (auto* arguments : {&ls, &verify}) {
      if (*json != '\0') arguments->push_back(json);
      const Ran ran = Run(*arguments);
      EXPECT_EQ(ran.exit, 1);
      EXPECT_THAT(ran.err, HasSubstr("step-00000002.json"));
      EXPECT_THAT(ran.err, HasSubstr("1 of 3 checkpoints is damaged"));
      EXPECT_THAT(ran.out, HasSubstr("3")) << "what comes after it is listed and verified too";
    }
  }
  std::filesystem::resize_file(std::filesystem::path(root_) / "step-00000003.json", 100);
  const Ran exported = Run({"ckpt", "export", root_, program_.folder() / "out.pt"});
  EXPECT_EQ(exported.exit, 1) << "no older step takes the place of the newest";
  EXPECT_THAT(exported.err, HasSubstr("step-00000003.json"));
}

TEST_F(CheckpointCliTest, ExportsTheModelOnly) {
  SaveThree();
  const std::string folder = program_.folder() / "exported";
  auto exported = Run({"ckpt", "export", root_, folder});
  ASSERT_EQ(exported.exit, 0) << exported.err;
  auto reader = OpenSafetensors(connection_, folder);
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().meta["model_config"]["model_type"], "llama");
  std::size_t models = 0;
  for (const auto& [name, tensor] : state_.tensors) {
    EXPECT_EQ((*reader)->manifest().tensors.contains(name), name.starts_with("model/"));
    if (!name.starts_with("model/")) continue;
    ++models;
    std::vector<std::byte> bytes(tensor.bytes.size());
    ASSERT_TRUE((*reader)->Read(name, 0, bytes, {}));
    EXPECT_TRUE(bytes == tensor.bytes);
  }
  EXPECT_EQ((*reader)->manifest().tensors.size(), models);

  auto imported = Run({"ckpt", "import", folder, root_, "--step", "9"});
  ASSERT_EQ(imported.exit, 0) << imported.err;
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--json"}).objects().at(0)["step"], 9);
  auto again = Reader::Open(connection_, root_, 9);
  ASSERT_TRUE(again) << again.error().ToString();
  auto tensors = (*again)->manifest().tensors;
  EXPECT_EQ(tensors.erase("files/config.json"), 1u);
  EXPECT_EQ(tensors, (*reader)->manifest().tensors);
  EXPECT_EQ((*again)->manifest().meta, (*reader)->manifest().meta);
  EXPECT_EQ(Run({"ckpt", "import", folder, root_, "--step", "9"}).exit, 1) << "it is there already";

  // The whole state by way of torch's formats, the kinds by the names.
  for (const char* to : {"state.pt", "dcp"}) {
    const std::string place = program_.folder() / to, other = std::string(place) + "-run";
    auto out = Run({"ckpt", "export", root_, place, "--step", "3", "--to", to == std::string("dcp") ? "dcp" : "torch"});
    ASSERT_EQ(out.exit, 0) << out.err;
    auto in = Run({"ckpt", "import", place, other, "--json"});
    ASSERT_EQ(in.exit, 0) << in.err;
    EXPECT_EQ(in.objects().at(0)["format"], to == std::string("dcp") ? "dcp" : "torch");
    state_.ExpectReadBack(**Reader::Open(connection_, other), 2);
  }

  Save(10, state_, {});
  auto refused = Run({"ckpt", "export", root_, folder});
  EXPECT_EQ(refused.exit, 4);
  EXPECT_THAT(refused.err, HasSubstr("model_config"));
}

TEST_F(CheckpointCliTest, CollectsOnlyWhenAsked) {
  SaveThree();
  auto steps = [&] { return Run({"ckpt", "ls", root_, "--json"}).objects().size(); };
  EXPECT_EQ(Run({"ckpt", "gc", root_}).exit, 0);
  EXPECT_EQ(steps(), 3u) << "without --keep-last nothing committed goes";
  auto dry = Run({"ckpt", "gc", root_, "--keep-last", "1", "--dry-run", "--json"}).objects();
  EXPECT_EQ(dry.at(0)["removed_steps"], Json({1, 2}));
  EXPECT_EQ(steps(), 3u);
  EXPECT_THAT(Run({"ckpt", "gc", root_, "--keep-last", "1"}).out, HasSubstr("removed step 2"));
  EXPECT_EQ(steps(), 1u);
}

TEST_F(CheckpointCliTest, SaysWhatIsWrong) {
  EXPECT_EQ(Run({"ckpt", "verify", root_}).exit, 4);
  EXPECT_THAT(Run({"ckpt", "verify", root_}).err, HasSubstr("no committed checkpoint"));
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "7"}).exit, 4);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "seven"}).exit, 2);
  EXPECT_EQ(Run({"ckpt", "verify", root_, "--step", "7", "--all"}).exit, 2);
  EXPECT_EQ(Run({"ckpt", "verify"}).exit, 2);
  EXPECT_EQ(Run({"ckpt", "gc", root_, "--keep-last", "0"}).exit, 2);
  const std::string nothing = program_.folder() / "nothing";
  EXPECT_EQ(Run({"ckpt", "import", nothing, root_}).exit, 4);
  EXPECT_THAT(Run({"ckpt", "import", nothing, root_}).err, HasSubstr("there is nothing at " + nothing));
  EXPECT_EQ(Run({"ckpt", "import", nothing, root_, "--from", "pickle"}).exit, 2);
  EXPECT_EQ(Run({"ckpt", "export", root_, nothing, "--file-size", "large"}).exit, 2);
  EXPECT_EQ(Run({"ckpt", "ls", "gopher://x"}).exit, 2);
  EXPECT_EQ(Run({"ckpt"}).exit, 2);
}

TEST_F(CheckpointCliTest, DoctorReportsAndKeepsSecrets) {
  const std::map<std::string, std::string> keys{{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"},
                                                {"AWS_SECRET_ACCESS_KEY", "very-secret-value"}};
  auto healthy = Run({"doctor", "--json", program_.folder()}, keys);
  EXPECT_EQ(healthy.exit, 0) << healthy.out;
  std::vector<std::string> checks;
  for (const Json& line : healthy.objects()) {
    checks.push_back(line["check"]);
    EXPECT_TRUE(line["level"] == "ok" || line["level"] == "warn") << line;
  }
  EXPECT_THAT(checks, ElementsAre("programs", "fuse", "disk", "memory", "limits", "cpu", "gpu", "credentials", "url"));

  auto broken = Run({"doctor", "s3://bucket", "--endpoint-url", "http://127.0.0.1:1"}, keys);
  EXPECT_EQ(broken.exit, 1);
  EXPECT_THAT(broken.out, HasSubstr("does not answer"));
  EXPECT_THAT(healthy.out + broken.out + broken.err, Not(HasSubstr("very-secret-value")));
  EXPECT_EQ(Run({"doctor", root_ + "/nothing/here", "gopher://x"}).exit, 1);
}

}  // namespace
}  // namespace millrace::checkpoint
