#include "millrace/metrics/tensorboard.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::metrics {
namespace {

using ::testing::ElementsAre;

class MemoryConnection final : public object::Connection {
 public:
  explicit MemoryConnection(std::shared_ptr<object::Store> store) : store_(std::move(store)) {}
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url&) override { return store_; }
  Result<std::shared_ptr<object::Service>> OpenService() override { return Fail(Code::kUnsupported, "no service"); }

 private:
  std::shared_ptr<object::Store> store_;
};

/// Payloads of a file's records; the checksums are verified.
std::vector<std::string> Records(std::string_view file) {
  std::vector<std::string> records;
  auto masked = [](std::string_view bytes) {
    std::uint32_t crc = Crc32c(AsBytes(bytes));
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  };
  while (!file.empty()) {
    auto length = LoadLittle<std::uint64_t>(AsBytes(file).data());
    EXPECT_EQ(LoadLittle<std::uint32_t>(AsBytes(file).data() + 8), masked(file.substr(0, 8)));
    records.emplace_back(file.substr(12, length));
    EXPECT_EQ(LoadLittle<std::uint32_t>(AsBytes(file).data() + 12 + length), masked(records.back()));
    file.remove_prefix(16 + length);
  }
  return records;
}

TEST(EventFile, MatchesTheDocumentedBytes) {
  auto records = Records(EventFileScalars(WallTime(), 7, {{"loss", 1.5f}}));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(HexEncode(AsBytes(records[0])),
            "0900000000000000001007"
            "2a0d0a0b0a046c6f7373150000c03f");
  auto header = Records(EventFileHeader(WallTime()));
  ASSERT_EQ(header.size(), 1u);
  EXPECT_EQ(HexEncode(AsBytes(header[0])),
            "090000000000000000"
            "1a0d" +
                HexEncode(AsBytes("brain.Event:2")));
}

TEST(EventFile, NegativeAndLargeStepsAreTenAndFiveByteVarints) {
  EXPECT_THAT(HexEncode(AsBytes(Records(EventFileScalars(WallTime(), -1, {}))[0])),
              "090000000000000000"
              "10ffffffffffffffffff01"
              "2a00");
  EXPECT_THAT(HexEncode(AsBytes(Records(EventFileScalars(WallTime(), 1ll << 32, {}))[0])),
              "090000000000000000"
              "108080808010"
              "2a00");
}

TEST(EventFile, TextIsATensorOfTheTextPlugin) {
  const std::string bytes = HexEncode(AsBytes(Records(EventFileText(WallTime(), 0, "job", "# a"))[0]));
  EXPECT_EQ(bytes,
            "0900000000000000001000"
            "2a200a1e0a036a6f62"              // a summary with one value, whose tag is "job"
            "4209080712004203232061"          // its tensor: DT_STRING, a scalar, "# a"
            "4a0c0a080a047465787412002002");  // its metadata: plugin "text", DATA_CLASS_TENSOR
}

class EventWriterTest : public testing::Test {
 protected:
  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    auto page = object::List(*store_, {});
    EXPECT_TRUE(page);
    for (const auto& object : page->objects) keys.push_back(object.key);
    return keys;
  }
  std::string Read(const std::string& key) { return object::GetAll(*store_, key, 1 << 20)->value().bytes; }

  FakeClock clock_;
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  MemoryConnection connection_{store_};
};

TEST_F(EventWriterTest, PutsTheFileWholeAtEveryFlush) {
  auto writer = *EventWriter::Open(connection_, "s3://bucket/runs/a/", {.suffix = "rank0"}, clock_);
  ASSERT_TRUE(writer->Flush());
  EXPECT_TRUE(Keys().empty()) << "nothing to say, nothing written";
  writer->Add(1, {{"loss", 8.f}});
  ASSERT_TRUE(writer->Flush());
  writer->Add(2, {{"loss", 7.f}, {"lr", 0.5f}});
  ASSERT_TRUE(writer->Flush());
  auto keys = Keys();
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_TRUE(keys[0].starts_with("runs/a/events.out.tfevents.1700000000.")) << keys[0];
  EXPECT_TRUE(keys[0].ends_with(".rank0.0000")) << keys[0];
  EXPECT_EQ(Records(Read(keys[0])).size(), 3u);
}

TEST_F(EventWriterTest, RollsAndLosesNothing) {
  auto writer = *EventWriter::Open(connection_, "s3://bucket", {.roll_bytes = 200}, clock_);
  for (int step = 0; step < 20; ++step) {
    writer->Add(step, {{"loss", static_cast<float>(step)}});
    if (step % 7 == 0) {
      ASSERT_TRUE(writer->Flush());
    }
  }
  ASSERT_TRUE(writer->Flush());
  std::size_t events = 0;
  auto keys = Keys();
  EXPECT_GT(keys.size(), 2u);
  for (const std::string& key : keys) {
    auto records = Records(Read(key));
    EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
    events += records.size() - 1;
  }
  EXPECT_EQ(events, 20u);
}

TEST_F(EventWriterTest, TensorBoardReadsIt) {
  const char* peers = std::getenv("MILLRACE_PEERS");
  std::filesystem::path python = std::filesystem::path(peers ? peers : "") / "venv/bin/python";
  if (peers == nullptr || !std::filesystem::exists(python)) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python";
  auto directory = *TempDir::Create();
  std::string bytes = EventFileHeader(clock_.Wall());
  for (int step = 0; step < 3; ++step)
    bytes += EventFileScalars(clock_.Wall(), step * 1000, {{"loss", 8.5f - step}, {"tokens/s", 1e6f}});
  ASSERT_TRUE(WriteFileAtomic(directory.path() / "events.out.tfevents.1700000000.x.0000", AsBytes(bytes)));
  const char* script = R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1]); a.Reload()
print(json.dumps({t: [[e.step, e.value, e.wall_time] for e in a.Scalars(t)] for t in a.Tags()["scalars"]}))
)";
  auto output = Subprocess::Run({.argv = {python, "-c", script, directory.path()}});
  ASSERT_TRUE(output) << output.error().ToString();
  if (!output->state.ok()) GTEST_SKIP() << "tensorboard does not run here: " << output->state.ToString();
  auto read = ParseJson(Trim(output->stdout_text), "tensorboard");
  ASSERT_TRUE(read) << output->stdout_text;
  EXPECT_EQ(*read, Json::parse(R"({"loss":[[0,8.5,1.7e9],[1000,7.5,1.7e9],[2000,6.5,1.7e9]],
                                   "tokens/s":[[0,1e6,1.7e9],[1000,1e6,1.7e9],[2000,1e6,1.7e9]]})"));
}

TEST_F(EventWriterTest, TensorBoardShowsTextAndHyperParameters) {
  const char* peers = std::getenv("MILLRACE_PEERS");
  std::filesystem::path python = std::filesystem::path(peers ? peers : "") / "venv/bin/python";
  if (peers == nullptr || !std::filesystem::exists(python)) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python";
  auto writer = *EventWriter::Open(connection_, "s3://bucket/a", {}, clock_);
  writer->AddText(0, "job", "```yaml\nname: a\n```");
  writer->AddSessionStart("a", {{"train.optimizer.lr", 3e-4}, {"model.family", "llama"}});
  writer->Add(1, {{"loss", 8.5f}});
  clock_.Advance(std::chrono::seconds(60));
  writer->AddSessionEnd();
  ASSERT_TRUE(writer->Flush());
  auto directory = *TempDir::Create();
  std::filesystem::create_directory(directory.path() / "a");
  ASSERT_TRUE(WriteFileAtomic(directory.path() / Keys().at(0), AsBytes(Read(Keys().at(0)))));
  // As the server of TensorBoard reads them: the plugins' own backends over its reader of files.
  const char* script = R"(
import json, sys
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard import context
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.plugins.text import text_plugin
multiplexer = plugin_event_multiplexer.EventMultiplexer()
multiplexer.AddRunsFromDirectory(sys.argv[1]); multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, sys.argv[1])
tb = base_plugin.TBContext(data_provider=provider)
request = context.RequestContext()
text = text_plugin.TextPlugin(tb)
shown = text.text_impl(request, "a", "job", "", True)
hparams = backend_context.Context(tb)
parameters = hparams.experiment_from_metadata(
    request, "", True, hparams.hparams_metadata(request, ""), hparams.hparams_from_data_provider(request, "", None))
groups = list_session_groups.Handler(
    request, hparams, "", api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=9, allowed_statuses=[api_pb2.STATUS_SUCCESS])).run().session_groups
session = groups[0].sessions[0]
print(json.dumps({
    "text": shown[0]["text"],
    "columns": sorted(each.name for each in parameters.hparam_infos),
    "groups": [each.name for each in groups],
    "lr": groups[0].hparams["train.optimizer.lr"].number_value,
    "family": groups[0].hparams["model.family"].string_value,
    "seconds": session.end_time_secs - session.start_time_secs}))
)";
  auto output = Subprocess::Run({.argv = {python, "-c", script, directory.path()}});
  ASSERT_TRUE(output) << output.error().ToString();
  ASSERT_TRUE(output->state.ok());
  auto read = ParseJson(Trim(output->stdout_text), "tensorboard");
  ASSERT_TRUE(read) << output->stdout_text;
  EXPECT_EQ((*read)["columns"], Json::parse(R"(["model.family","train.optimizer.lr"])"));
  EXPECT_EQ((*read)["groups"], Json::parse(R"(["a"])"));
  EXPECT_EQ((*read)["lr"], 3e-4);
  EXPECT_EQ((*read)["family"], "llama");
  EXPECT_EQ((*read)["seconds"], 60);
  EXPECT_THAT((*read)["text"].get<std::string>(), ::testing::HasSubstr("<pre><code>name: a"));
}

}  // namespace
}  // namespace millrace::metrics
