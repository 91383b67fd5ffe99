// Full circle with Hugging Face's own code: a folder that transformers saved becomes a checkpoint, whose files
// safetensors reads, and whose export transformers loads as the same model.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/local/file_store.h"

namespace millrace::checkpoint {
namespace {

constexpr const char* kMakeModel = R"(
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=96)
LlamaForCausalLM(config).save_pretrained(sys.argv[1], max_shard_size=sys.argv[2])
)";

constexpr const char* kCompare = R"(
import glob, sys, torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
saved, exported, checkpoint = sys.argv[1:]
a = AutoModelForCausalLM.from_pretrained(saved).state_dict()
b = AutoModelForCausalLM.from_pretrained(exported).state_dict()
assert a.keys() == b.keys(), (a.keys(), b.keys())
assert all(torch.equal(a[k], b[k]) for k in a)
slices = {}
for path in glob.glob(checkpoint + "/step-00000005/*/*.safetensors"):
    with safe_open(path, "pt") as f:
        for name in f.keys(): slices[name] = f.get_tensor(name)
for name, whole in a.items():
    half = whole.numel() // 2
    parts = [slices[f"model/{name}[0:{half}]"], slices[f"model/{name}[{half}:{whole.numel()}]"]]
    assert torch.equal(torch.cat(parts), whole.flatten()), name
print("same")
)";

class InteropTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* peers = std::getenv("MILLRACE_PEERS");
    python_ = std::filesystem::path(peers ? peers : "") / "venv/bin/python";
    if (!peers || !std::filesystem::exists(python_)) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python";
  }
  Result<std::string> Python(const char* script, std::vector<std::string> arguments) {
    std::vector<std::string> argv{python_, "-c", script};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    auto output = MR_TRY(Subprocess::Run({.argv = argv, .env = {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}}}));
    if (!output.state.ok()) return Fail(Code::kIo, "python: {}: {}", output.state.ToString(), output.stdout_text);
    return output.stdout_text;
  }
  std::filesystem::path python_;
};

TEST_F(InteropTest, TransformersLoadsWhatItSavedByWayOfACheckpoint) {
  auto directory = *TempDir::Create();
  const std::string root = directory.path().string();
  auto made = Python(kMakeModel, {root + "/saved", "20KB"});
  if (!made) GTEST_SKIP() << "transformers does not run here: " << made.error().ToString();
  ASSERT_TRUE(std::filesystem::exists(root + "/saved/model.safetensors.index.json")) << "several shards";

  testing::StoreConnection connection(*object::OpenFileStore({.root = "/", .durable = false}));
  auto source = OpenSafetensors(connection, root + "/saved");
  ASSERT_TRUE(source) << source.error().ToString();
  // Two ranks, each with half of every tensor.
  std::map<std::string, std::vector<std::byte>> content;
  std::vector<std::vector<SaveSlice>> shares(2);
  for (const auto& [name, meta] : (*source)->manifest().tensors) {
    auto& bytes = content[name] = std::vector<std::byte>(meta.bytes());
    ASSERT_TRUE((*source)->Read(name, 0, bytes, {}));
    const std::uint64_t half = meta.elements() / 2, element = DTypeBytes(meta.dtype);
    shares[0].push_back({name, meta, 0, ByteSpan(bytes).first(half * element)});
    shares[1].push_back({name, meta, half, ByteSpan(bytes).subspan(half * element)});
  }
  testing::ThreadRanks ranks(2);
  MemoryBudget budget(64 * kMiB);
  std::vector<std::unique_ptr<Writer>> writers;
  for (int rank = 0; rank < 2; ++rank) {
    Writer::Options options;
    options.url = root + "/checkpoint";
    writers.push_back(*Writer::Open(connection, ranks.Rank(rank), budget, options));
    ASSERT_TRUE(writers.back()->Save(5, shares[rank], (*source)->MetaText()));
  }
  for (auto& writer : writers) ASSERT_TRUE(writer->Wait());

  auto reader = Reader::Open(connection, root + "/checkpoint");
  ASSERT_TRUE(reader) << reader.error().ToString();
  auto exported = Export(**reader, *object::Locate(connection, root + "/exported"), budget);
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_EQ(exported->tensors, content.size());
  auto compared = Python(kCompare, {root + "/saved", root + "/exported", root + "/checkpoint"});
  ASSERT_TRUE(compared) << compared.error().ToString();
  EXPECT_EQ(*compared, "same\n");
}

}  // namespace
}  // namespace millrace::checkpoint
