// Properties over random states: what is exported and imported again is the same, in every format and however it was
// cut; and whatever byte of it is damaged is found.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/checkpoint/commit/collect.h"
#include "millrace/checkpoint/convert/export.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/open_source.h"
#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/foreign_format.h"
#include "millrace/checkpoint/convert/torch/dcp_source.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/read/open_safetensors.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/checkpoint/testing/random_state.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;
using testing::State;

class ConvertTest : public ::testing::Test {
 protected:
  void Save(const State& state, const Json& meta, std::uint64_t step = 1) {
    auto ranks = testing::ThreadRanks(1);
    Writer::Options options;
    options.url = "s3://bucket/run";
    options.chunk_bytes = 4096;
    auto writer = Writer::Open(connection_, ranks.Rank(0), budget_, options);
    ASSERT_TRUE(writer) << writer.error().ToString();
    ASSERT_TRUE((*writer)->Save(step, state.Share(1, step)[0], DumpJson(meta)));
    auto saved = (*writer)->Wait();
    ASSERT_TRUE(saved) << saved.error().ToString();
  }
  std::unique_ptr<Reader> Open(const std::string& url = "s3://bucket/run") {
    auto reader = Reader::Open(connection_, url);
    EXPECT_TRUE(reader) << reader.error().ToString();
    return reader ? *std::move(reader) : nullptr;
  }
  Result<ExportResult> ExportTo(const std::string& key, ForeignFormat format, std::uint64_t file_bytes = kGiB,
                                std::string group = "") {
    auto reader = Open();
    return Export(*reader, {store_, key}, budget_, {format, std::move(group), file_bytes});
  }
  Result<Manifest> ImportFrom(const std::string& key, const std::string& url, std::uint64_t file_bytes = kGiB) {
    const std::string source = "s3://bucket/" + key;
    const ForeignFormat format = MR_TRY(DetectForeignFormat(connection_, source));
    auto opened = MR_TRY(OpenSource(connection_, source, format));
    return Import(connection_, std::move(opened), url, budget_, {.step = 7, .file_bytes = file_bytes});
  }
  std::string Content(const std::string& key) {
    auto content = object::GetAll(*store_, key, kGiB);
    return content && *content ? (*content)->bytes : "";
  }
  void Put(const std::string& key, std::string_view content) {
    ASSERT_TRUE(object::Put(*store_, key, AsBytes(content)));
  }
  std::set<std::string> Keys(const std::string& prefix) {
    std::set<std::string> keys;
    std::ignore = object::ListAll(*store_, {.prefix = prefix}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) keys.insert(info.key);
      return true;
    });
    return keys;
  }

  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  testing::StoreConnection connection_{store_};
  MemoryBudget budget_{64 * kMiB};
};

const Json& Meta() {
  static const Json meta{
      {"schedule", {{"step", 5}}},
      {"values",
       {{"epoch", 3},
        {"optimizer/lr", 0.001},
        {"optimizer/betas", {{"tuple", {0.9, 0.999}}}},
        {"rng/bytes", {{"bytes", "AP+AQQ=="}}},
        {"rng/seed", {{"int", "18446744073709551615"}}},
        {"nothing", nullptr},
        {"flags", {{"list", {true, false, -7, "text ☃"}}}},
        {"worst", {{"float", "-inf"}}},
        {"type", {{"dtype", "bfloat16"}}},
        {"map", {{"list", Json::array({Json{{"dict", Json::array({Json::array({1, "one"})})}}})}}}}}};
  return meta;
}

TEST_F(ConvertTest, EveryStateComesBackFromTorchAndDcp) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    State state = State::Random(seed, 12);
    const std::uint64_t file_bytes = seed % 3 == 0 ? 3000 : kGiB;
    Save(state, Meta(), seed);
    for (const auto& [key, format] :
         {std::pair("out/state.pt", ForeignFormat::kTorch), {"out/dcp", ForeignFormat::kDcp}}) {
      auto exported = ExportTo(key, format, file_bytes);
      ASSERT_TRUE(exported) << exported.error().ToString();
      EXPECT_EQ(exported->tensors, state.tensors.size());
      const std::string url = fmt::format("s3://bucket/again-{}-{}", seed, ForeignFormatName(format));
      auto imported = ImportFrom(key, url, file_bytes);
      ASSERT_TRUE(imported) << imported.error().ToString();
      auto again = Open(url);
      state.ExpectReadBack(*again, 2);
      Json values = again->manifest().meta.at("values"), expected = Meta().at("values");
      if (format == ForeignFormat::kDcp) {  // torch gives what lies in a list with dicts names of its own
        expected.erase("map");
        expected["map/@0/#1"] = "one";
      }
      EXPECT_EQ(nlohmann::json(values), nlohmann::json(expected));
      EXPECT_EQ(again->manifest().meta.at("schedule"), Meta().at("schedule"));
      EXPECT_TRUE(again->Verify());
    }
  }
  // The newest export is all that is left of a folder that was written twelve times.
  EXPECT_EQ(Keys("out/dcp/").size(), ExportTo("out/dcp", ForeignFormat::kDcp, 3000)->files);
}

TEST_F(ConvertTest, ManyTensorsAreFoundInFewRequests) {
  State state;
  for (int i = 0; i < 700; ++i) {
    const std::size_t bytes = i % 100 == 0 ? 300'000 : 500;
    state.tensors[fmt::format("model/layer/{}", i)] = {{DType::kU8, {static_cast<std::int64_t>(bytes)}},
                                                       std::vector(bytes, static_cast<std::byte>(i))};
  }
  Save(state, Meta());
  const auto counted = object::FaultStore::Create(store_);
  const auto gets = [&](auto open) {
    const std::uint64_t before = counted->calls(object::Operation::kGet);
    auto source = open();
    EXPECT_TRUE(source) << source.error().ToString();
    EXPECT_EQ(source->tensors.size(), state.tensors.size());
    return counted->calls(object::Operation::kGet) - before;
  };
  ASSERT_TRUE(ExportTo("state.pt", ForeignFormat::kTorch));
  EXPECT_LT(gets([&] { return OpenTorchFile({counted, "state.pt"}, {}); }), 20u) << "7 of them are large";
  ASSERT_TRUE(ExportTo("dcp", ForeignFormat::kDcp));
  EXPECT_LT(gets([&] { return OpenDcpFolder({counted, "dcp/"}, {}); }), 20u);
}

/// An import by shares, beside the same import by one process.
class SharedImport : public ConvertTest {
 protected:
  Result<ImportShareResult> Share(const std::string& key, std::uint32_t index, std::uint32_t count,
                                  std::string_view url = "s3://bucket/shared") {
    const std::string source = "s3://bucket/" + key;
    auto opened = MR_TRY(OpenSource(connection_, source, MR_TRY(DetectForeignFormat(connection_, source))));
    const ImportOptions options{.step = 7, .file_bytes = 3000, .share = {.index = index, .count = count}};
    return ImportShare(connection_, std::move(opened), url, budget_, options, Logger());
  }
  /// Compares all bytes of the two checkpoints.
  void ExpectSame(const std::string& alone, const std::string& shared) {
    const Manifest one = Open("s3://bucket/" + alone)->manifest(), other = Open("s3://bucket/" + shared)->manifest();
    EXPECT_EQ(one.tensors, other.tensors);
    EXPECT_EQ(nlohmann::json(one.meta), nlohmann::json(other.meta));
    const auto file = [](const Manifest& manifest, const std::string& name) {
      return name.substr(manifest.attempt.size());
    };
    ASSERT_EQ(one.slices.size(), other.slices.size());
    for (std::size_t i = 0; i < one.slices.size(); ++i) {
      EXPECT_EQ(one.slices[i].offset, other.slices[i].offset);
      EXPECT_EQ(file(one, one.slices[i].file), file(other, other.slices[i].file));
    }
    ASSERT_EQ(one.files.size(), other.files.size());
    std::set<std::string> keys{shared + "/step-00000007.json"};
    for (const auto& [name, meta] : one.files) {
      const std::string same = other.attempt + file(one, name);
      ASSERT_TRUE(other.files.contains(same));
      EXPECT_EQ(meta, other.files.at(same));
      EXPECT_EQ(Content(alone + "/step-00000007/" + name), Content(shared + "/step-00000007/" + same));
      keys.insert(shared + "/step-00000007/" + same);
    }
    EXPECT_EQ(Keys(shared + "/"), keys) << "nothing but the checkpoint stays";
  }
};

TEST_F(SharedImport, HasTheBytesOfOneProcess) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const State state = State::Random(seed, 16);
    Save(state, Meta(), seed);
    const ForeignFormat format = seed % 2 == 0 ? ForeignFormat::kTorch : ForeignFormat::kDcp;
    const std::string key = fmt::format("out/{}{}", seed, seed % 2 == 0 ? ".pt" : "");
    const std::string alone = fmt::format("alone-{}", seed), shared = fmt::format("shared-{}", seed);
    ASSERT_TRUE(ExportTo(key, format));
    ASSERT_TRUE(ImportFrom(key, "s3://bucket/" + alone, 3000));
    const std::uint32_t count = 2 + seed % 3;
    for (std::uint32_t index = count; index-- > 0;) {
      auto done = Share(key, index, count, "s3://bucket/" + shared);
      ASSERT_TRUE(done) << done.error().ToString();
      EXPECT_EQ(done->manifest.has_value(), index == 0) << "only the first share commits";
      EXPECT_EQ(done->own_files, (done->files + count - 1 - index) / count);
    }
    ExpectSame(alone, shared);
    state.ExpectReadBack(*Open("s3://bucket/" + shared), 2);
  }
}

TEST_F(SharedImport, TheFirstShareWaitsForTheOthers) {
  Save(State::Random(3, 16), Meta());
  ASSERT_TRUE(ExportTo("out.pt", ForeignFormat::kTorch));
  ASSERT_TRUE(ImportFrom("out.pt", "s3://bucket/alone", 3000));
  std::thread first([&] {
    auto done = Share("out.pt", 0, 2);
    ASSERT_TRUE(done) << done.error().ToString();
    EXPECT_TRUE(done->manifest);
  });
  EXPECT_TRUE(Share("out.pt", 1, 2));
  first.join();
  ExpectSame("alone", "shared");
}

TEST_F(SharedImport, GoesOnWhereItWasStoppedAndKnowsWhatItCommitted) {
  Save(State::Random(3, 16), Meta());
  ASSERT_TRUE(ExportTo("out.pt", ForeignFormat::kTorch));
  ASSERT_TRUE(ImportFrom("out.pt", "s3://bucket/alone", 3000));
  const auto whole = Share("out.pt", 1, 2);
  ASSERT_TRUE(whole);
  ASSERT_GE(whole->own_files, 2u);
  // The last file was cut off: its note is missing.
  std::string last;
  for (const std::string& key : Keys("shared/")) {
    if (key.ends_with(".json")) last = key;
  }
  ASSERT_TRUE(object::DeleteMany(*store_, {last}));
  const auto again = Share("out.pt", 1, 2);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->resumed, whole->own_files - 1);
  ASSERT_TRUE(Share("out.pt", 0, 2));
  ExpectSame("alone", "shared");
  // A job that starts all its ranks again finds its own checkpoint.
  for (const std::uint32_t index : {0u, 1u}) {
    const auto late = Share("out.pt", index, 2);
    ASSERT_TRUE(late) << late.error().ToString();
    EXPECT_TRUE(late->manifest);
    EXPECT_EQ(late->resumed, late->own_files);
  }
  ASSERT_TRUE(ExportTo("other.pt", ForeignFormat::kTorch));
  EXPECT_EQ(Share("other.pt", 0, 2).error().code(), Code::kAlreadyExists) << "the source is another object";
}

TEST_F(SharedImport, FilesThatACollectorRemovedAreNotCommitted) {
  Save(State::Random(3, 16), Meta());
  ASSERT_TRUE(ExportTo("out.pt", ForeignFormat::kTorch));
  ASSERT_TRUE(ImportFrom("out.pt", "s3://bucket/alone", 3000));
  ASSERT_TRUE(Share("out.pt", 1, 2));
  // A newer commit makes orphans of the unfinished import.
  auto source = OpenSource(connection_, "s3://bucket/out.pt", ForeignFormat::kTorch);
  ASSERT_TRUE(Import(connection_, *std::move(source), "s3://bucket/shared", budget_, {.step = 9}));
  auto collected = CollectGarbage({store_, "shared"}, {.keep_last = 5}, /*dry_run=*/false);
  ASSERT_TRUE(collected);
  ASSERT_GT(collected->objects, 0u);
  const auto again = Share("out.pt", 1, 2);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->resumed, 0u);
  ASSERT_TRUE(Share("out.pt", 0, 2));
  auto reader = Reader::Open(connection_, "s3://bucket/shared", 7);
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_TRUE((*reader)->Verify());
}

TEST_F(SharedImport, DamageIsFoundByOneOfTheShares) {
  Save(State::Random(3, 16), Meta());
  ASSERT_TRUE(ExportTo("out.pt", ForeignFormat::kTorch));
  std::string file = Content("out.pt");
  std::size_t largest = 0, at = 0;
  const auto opened = OpenSource(connection_, "s3://bucket/out.pt", ForeignFormat::kTorch);
  for (const SourceChecksum& checksum : opened->checksums) {
    if (checksum.size > largest) largest = checksum.size, at = checksum.offset;
  }
  file[at + largest - 1] = static_cast<char>(~file[at + largest - 1]);
  Put("out.pt", file);
  std::size_t found = 0;
  for (const std::uint32_t index : {1u, 2u}) {
    const auto done = Share("out.pt", index, 3);
    if (done) continue;
    EXPECT_EQ(done.error().code(), Code::kCorrupt) << done.error().ToString();
    ++found;
  }
  if (found == 0) {
    EXPECT_EQ(Share("out.pt", 0, 3).error().code(), Code::kCorrupt);
  }
  EXPECT_FALSE(Keys("shared/").contains("shared/step-00000007.json"));
}

TEST_F(ConvertTest, AGroupIsAStateOfItsOwn) {
  State state = State::Random(3, 10);
  Save(state, Meta());
  ASSERT_TRUE(ExportTo("model.pt", ForeignFormat::kTorch, kGiB, "model"));
  auto source = OpenTorchFile({store_, "model.pt"}, {});
  ASSERT_TRUE(source) << source.error().ToString();
  for (const auto& [name, meta] : source->tensors) EXPECT_EQ(state.tensors.at("model/" + name).meta, meta);
  EXPECT_EQ(source->tensors.size(), 5u);
  auto imported = Import(connection_, *std::move(source), "s3://bucket/grouped", budget_, {.group = "model/"});
  ASSERT_TRUE(imported) << imported.error().ToString();
  for (const auto& [name, meta] : imported->tensors) EXPECT_EQ(state.tensors.at(name).meta, meta);
  EXPECT_EQ(ExportTo("x.pt", ForeignFormat::kTorch, kGiB, "nothing").error().code(), Code::kNotFound);
}

TEST_F(ConvertTest, AnySingleDamageOfATorchFileIsFoundOrChangesNothing) {
  State state = State::Random(4, 6, 200);
  Save(state, Meta());
  ASSERT_TRUE(ExportTo("good.pt", ForeignFormat::kTorch));
  const std::string good = Content("good.pt");
  Random random(4);
  int found = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    bad[random.Below(bad.size())] ^= static_cast<char>(1 << random.Below(8));
    if (i % 10 == 0) bad.resize(random.Below(good.size()));
    Put("bad.pt", bad);
    auto imported = ImportFrom("bad.pt", fmt::format("s3://bucket/bad-{}", i));
    if (!imported) {
      ++found;
      EXPECT_TRUE(imported.error().code() == Code::kCorrupt || imported.error().code() == Code::kUnsupported)
          << imported.error().ToString();
      continue;
    }
    // Padding and fields that nobody reads may differ; not a byte of a tensor.
    auto reader = Open(fmt::format("s3://bucket/bad-{}", i));
    state.ExpectReadBack(*reader, 1);
  }
  EXPECT_GT(found, 150);
}

TEST_F(ConvertTest, HuggingFaceInShardsAndBack) {
  State state = State::Random(5, 16);
  std::erase_if(state.tensors, [](const auto& one) { return !one.first.starts_with("model/"); });
  const std::string config = "{\n \"model_type\":   \"other\"\n}";
  const std::string tokenizer = "{\"tokens\": []}\n";
  state.tensors["files/config.json"] = {{DType::kU8, {static_cast<std::int64_t>(config.size())}}, {}};
  state.tensors["files/tokenizer.json"] = {{DType::kU8, {static_cast<std::int64_t>(tokenizer.size())}}, {}};
  for (auto [name, text] : {std::pair("files/config.json", &config), {"files/tokenizer.json", &tokenizer}}) {
    const ByteSpan bytes = AsBytes(*text);
    state.tensors.at(name).bytes.assign(bytes.begin(), bytes.end());
  }
  Save(state, {{"model_config", {{"model_type", "other"}}}});
  Put("hf/model.safetensors", "old");
  Put("hf/pytorch_model-00001-of-00002.bin", "old");
  Put("hf/consolidated.safetensors", "not ours");
  auto exported = ExportTo("hf", ForeignFormat::kHuggingFace, 8000);
  ASSERT_TRUE(exported) << exported.error().ToString();
  const auto keys = Keys("hf/");
  EXPECT_TRUE(keys.contains("hf/model.safetensors.index.json"));
  EXPECT_FALSE(keys.contains("hf/model.safetensors"));
  EXPECT_FALSE(keys.contains("hf/pytorch_model-00001-of-00002.bin"));
  EXPECT_TRUE(keys.contains("hf/consolidated.safetensors"));
  EXPECT_EQ(Content("hf/config.json"), config) << "byte by byte";
  EXPECT_EQ(Content("hf/tokenizer.json"), tokenizer);
  auto imported = ImportFrom("hf", "s3://bucket/hf-again");
  ASSERT_TRUE(imported) << imported.error().ToString();
  state.ExpectReadBack(*Open("s3://bucket/hf-again"), 3);

  auto single = ExportTo("hf", ForeignFormat::kHuggingFace);
  ASSERT_TRUE(single) << single.error().ToString();
  EXPECT_EQ(Keys("hf/"), (std::set<std::string>{"hf/config.json", "hf/consolidated.safetensors", "hf/model.safetensors",
                                                "hf/tokenizer.json"}));
}

/// A checkpoint may hold a matrix as the transpose of what Hugging Face's files have; its meta says so.
TEST_F(ConvertTest, AnExportTurnsTransposedMatrices) {
  constexpr std::int64_t kRows = 37, kColumns = 70;  // neither a multiple of the tiles
  std::vector<std::byte> stored(kRows * kColumns * 2), turned(stored.size());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const auto value = static_cast<std::uint16_t>(row * kColumns + column);
      StoreLittle(&stored[static_cast<std::size_t>(row * kColumns + column) * 2], value);
      StoreLittle(&turned[static_cast<std::size_t>(column * kRows + row) * 2], value);
    }
  }
  State state;
  state.tensors["model/h.0.c_attn.weight"] = {{DType::kBF16, {kRows, kColumns}}, stored};
  state.tensors["model/wte.weight"] = {{DType::kBF16, {kRows, kColumns}}, stored};
  Save(state, {{"model_config", {{"model_type", "other"}}}, {"transposed", {"h.0.c_attn.weight"}}});
  auto exported = ExportTo("hf", ForeignFormat::kHuggingFace);
  ASSERT_TRUE(exported) << exported.error().ToString();
  state.tensors["model/h.0.c_attn.weight"] = {{DType::kBF16, {kColumns, kRows}}, turned};
  state.ExpectReadBack(**OpenSafetensors(connection_, "s3://bucket/hf"), 3);
}

/// Exports over older ones that are cut off anywhere.
class ReplacedExport : public ConvertTest {
 protected:
  /// The state of a step: every byte of every tensor is its number.
  void SaveStep(int step, const std::string& tokenizer) {
    State state;
    for (int i = 0; i < 6; ++i)
      state.tensors[fmt::format("model/t{}", i)] = {{DType::kU8, {1000}},
                                                    std::vector(1000, static_cast<std::byte>(step))};
    const ByteSpan bytes = AsBytes(tokenizer);
    state.tensors["files/tokenizer.json"] = {{DType::kU8, {static_cast<std::int64_t>(bytes.size())}},
                                             {bytes.begin(), bytes.end()}};
    Save(state, {{"model_config", {{"model_type", "other"}, {"of", tokenizer}}}}, static_cast<std::uint64_t>(step));
  }
  Status ExportStep(int step, ForeignFormat format, std::uint64_t file_bytes) {
    auto reader = MR_TRY(Reader::Open(connection_, "s3://bucket/run", static_cast<std::uint64_t>(step)));
    MR_TRY(Export(*reader, {faults_, "hf"}, budget_, {format, "", file_bytes}));
    return {};
  }
  /// The step whose model the folder has; -1: none. Through one of the two ways in which folders are read here: of one
  /// file and an index, each prefers another.
  int ReadFolder(bool index_first, ForeignFormat format) {
    std::set<int> seen;
    const auto see = [&](Reader& reader, const std::string& group) {
      for (int i = 0; i < 6; ++i) {
        std::byte bytes[1000];
        const Status read = reader.Read(fmt::format("{}t{}", group, i), 0, bytes);
        EXPECT_TRUE(read) << read.error().ToString();
        for (const std::byte byte : bytes) seen.insert(static_cast<int>(byte));
      }
      EXPECT_EQ(seen.size(), 1u) << "a mixture";
      return static_cast<int>(*seen.begin());
    };
    if (index_first) {
      auto reader = OpenSafetensors(connection_, "s3://bucket/hf");
      if (!reader) return -1;
      return see(**reader, "model/");
    }
    auto source = OpenSource(connection_, "s3://bucket/hf", format);
    if (!source) return -1;
    const std::string url = fmt::format("s3://bucket/read-{}", reads_++);
    auto imported = Import(connection_, *std::move(source), url, budget_);
    EXPECT_TRUE(imported) << imported.error().ToString();
    return see(*Open(url), "model/");
  }

  std::shared_ptr<object::FaultStore> faults_ = object::FaultStore::Create(store_);
  int reads_ = 0;
};

TEST_F(ReplacedExport, AReaderSeesTheOldOrTheNewWhereverItIsCutOff) {
  struct Case {
    const char* name;
    ForeignFormat format;
    std::uint64_t old_bytes, new_bytes;
  };
  constexpr std::uint64_t kShard = 2500;
  SaveStep(1, "tokens");
  SaveStep(2, "tokens");
  for (const Case& c : {Case{"one file over one", ForeignFormat::kHuggingFace, kGiB, kGiB},
                        {"shards over one file", ForeignFormat::kHuggingFace, kGiB, kShard},
                        {"one file over shards", ForeignFormat::kHuggingFace, kShard, kGiB},
                        {"shards over as many", ForeignFormat::kHuggingFace, kShard, kShard},
                        {"shards over others", ForeignFormat::kHuggingFace, kShard, 1500},
                        {"dcp over dcp", ForeignFormat::kDcp, kShard, kShard}}) {
    int last = 0, operation = 0;
    for (bool done = false; !done; ++operation) {
      for (const std::string& key : Keys("hf/")) ASSERT_TRUE(object::Delete(*store_, key));
      ASSERT_TRUE(ExportStep(1, c.format, c.old_bytes));
      faults_->Add({.skip = operation, .times = -1, .fault = {.code = Code::kUnavailable}});
      const Status cut = ExportStep(2, c.format, c.new_bytes);
      faults_->Clear();
      done = cut.has_value();
      for (const bool index_first : {true, false}) {
        if (c.format == ForeignFormat::kDcp && index_first) continue;
        const int seen = ReadFolder(index_first, c.format);
        EXPECT_TRUE(seen == 1 || seen == 2) << c.name << ", cut off at request " << operation << ": " << seen;
        last = seen;
      }
      ASSERT_TRUE(ExportStep(2, c.format, c.new_bytes)) << "whatever was left";
      EXPECT_EQ(ReadFolder(false, c.format), 2);
      const auto keys = Keys("hf/");
      ASSERT_TRUE(ExportStep(2, c.format, c.new_bytes));
      EXPECT_EQ(Keys("hf/").size(), keys.size()) << c.name << ": leftovers";
    }
    EXPECT_EQ(last, 2) << c.name;
    EXPECT_GT(operation, 5) << c.name;
  }
}

TEST_F(ReplacedExport, AFailedExportLeavesWhatWasThere) {
  SaveStep(1, "tokens");
  SaveStep(2, "tokens");
  for (const ForeignFormat format : {ForeignFormat::kHuggingFace, ForeignFormat::kDcp}) {
    for (const bool replaces : {false, true}) {
      int cut = 0;
      for (bool done = false; !done; ++cut) {
        for (const std::string& key : Keys("hf/")) ASSERT_TRUE(object::Delete(*store_, key));
        if (replaces) ASSERT_TRUE(ExportStep(1, format, 2500));
        const auto before = Keys("hf/");
        // The last put commits. If its answer is lost, only the put may have to be undone.
        faults_->Add({.operation = object::Operation::kPut,
                      .skip = cut,
                      .fault = {.code = Code::kUnavailable, .after_effect = true}});
        done = ExportStep(2, format, 2500).has_value();
        faults_->Clear();
        if (done) continue;
        if (replaces) {
          EXPECT_NE(ReadFolder(false, format), -1) << cut;
        } else {
          EXPECT_EQ(Keys("hf/"), before) << cut;
        }
      }
      EXPECT_GT(cut, 2);
    }
  }
}

TEST_F(ReplacedExport, NobodyTakesOneModelsWeightsWithTheTokenizerOfAnother) {
  SaveStep(1, "tokens");
  SaveStep(2, "others");
  for (const std::uint64_t file_bytes : {kGiB, std::uint64_t{2500}}) {
    int nothing = 0;
    bool done = false;
    for (int operation = 0; !done; ++operation) {
      for (const std::string& key : Keys("hf/")) ASSERT_TRUE(object::Delete(*store_, key));
      ASSERT_TRUE(ExportStep(1, ForeignFormat::kHuggingFace, file_bytes));
      faults_->Add({.skip = operation, .times = -1, .fault = {.code = Code::kUnavailable}});
      done = ExportStep(2, ForeignFormat::kHuggingFace, file_bytes).has_value();
      faults_->Clear();
      const int seen = ReadFolder(operation % 2 == 0, ForeignFormat::kHuggingFace);
      nothing += seen == -1;
      if (seen != -1) {
        EXPECT_EQ(Content("hf/tokenizer.json"), seen == 1 ? "tokens" : "others") << operation;
        EXPECT_THAT(Content("hf/config.json"), HasSubstr(seen == 1 ? "tokens" : "others")) << operation;
      }
    }
    EXPECT_GT(nothing, 0) << "a folder has no better way";
  }
}

TEST_F(ConvertTest, AdaptersAreAGroupOfTheirOwn) {
  State state = State::Random(6, 4);
  State adapter;
  for (const auto& [name, tensor] : state.tensors) adapter.tensors["adapter/" + PathPart(name)] = tensor;
  Save(adapter, {{"adapter_config", {{"peft_type", "LORA"}, {"r", 8}}}});
  auto exported = ExportTo("lora", ForeignFormat::kPeft);
  ASSERT_TRUE(exported) << exported.error().ToString();
  EXPECT_EQ(Keys("lora/"), (std::set<std::string>{"lora/adapter_config.json", "lora/adapter_model.safetensors"}));
  auto imported = ImportFrom("lora", "s3://bucket/lora-again");
  ASSERT_TRUE(imported) << imported.error().ToString();
  for (const auto& [name, tensor] : adapter.tensors) EXPECT_EQ(imported->tensors.at(name), tensor.meta);
  EXPECT_EQ(imported->meta.at("adapter_config").at("r"), 8);
}

TEST_F(ConvertTest, NoFileLeavesItsFolder) {
  for (const char* name : {"files/../../etc/passwd", "files/.ssh", "files/model.safetensors", "files/a/b"}) {
    State state;
    state.tensors["model/w"] = {{DType::kU8, {1}}, {std::byte{1}}};
    state.tensors[name] = {{DType::kU8, {1}}, {std::byte{1}}};
    static std::uint64_t step = 100;
    Save(state, {{"model_config", Json::object()}}, ++step);
    auto exported = ExportTo("hf", ForeignFormat::kHuggingFace);
    ASSERT_FALSE(exported) << name;
    EXPECT_EQ(exported.error().code(), Code::kCorrupt);
  }
}

TEST_F(ConvertTest, SaysWhatIsWrong) {
  EXPECT_EQ(DetectForeignFormat(connection_, "s3://bucket/none").error().code(), Code::kNotFound);
  Put("empty.pt", "");
  EXPECT_EQ(ImportFrom("empty.pt", "s3://bucket/x").error().code(), Code::kCorrupt);
  Put("old.pt", std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 15));
  EXPECT_THAT(ImportFrom("old.pt", "s3://bucket/x").error().ToString(), HasSubstr("torch 1.6"));
  Put("dcp/.metadata", "\x80\x04}.");
  EXPECT_THAT(ImportFrom("dcp", "s3://bucket/x").error().ToString(), HasSubstr("not a Metadata"));
  Put("evil/.metadata",
      "\x80\x02"
      "cposix\nsystem\nX\x02\0\0\0idq\0\x85R.");
  EXPECT_THAT(ImportFrom("evil", "s3://bucket/x").error().ToString(), HasSubstr("posix.system"));
  Put("hf/model.safetensors", "short");
  EXPECT_EQ(ImportFrom("hf", "s3://bucket/x").error().code(), Code::kCorrupt);
  EXPECT_TRUE(Keys("x/").empty()) << "nothing of a failed import stays";
}

TEST_F(ConvertTest, ATensorOutOfOrderIsPutInOrderOrRefused) {
  // Two by three, stored by columns.
  PickleWriter pickle;
  pickle.EmptyDict();
  pickle.OpenMark();
  pickle.Text("t");
  pickle.Global("torch._utils", "_rebuild_tensor_v2");
  pickle.OpenMark();
  pickle.OpenMark();
  pickle.Text("storage");
  pickle.Global("torch", "ByteStorage");
  pickle.Text("0");
  pickle.Text("cpu");
  pickle.Int(6);
  pickle.Tuple();
  pickle.PersistentId();
  pickle.Int(0);
  pickle.IntTuple(std::vector{2, 3});
  pickle.IntTuple(std::vector{1, 2});
  pickle.Bool(false);
  pickle.EmptyDict();
  pickle.Tuple();
  pickle.Reduce();
  pickle.SetItems();
  std::string file;
  ZipWriter zip([&](ByteSpan bytes) {
    file += AsText(bytes);
    return Status();
  });
  ASSERT_TRUE(BeginTorchArchive(zip, std::move(pickle).Finish()));
  ASSERT_TRUE(zip.Add(StorageEntry("0"), "abcdef"));
  ASSERT_TRUE(EndTorchArchive(zip));
  Put("t.pt", file);
  ASSERT_TRUE(ImportFrom("t.pt", "s3://bucket/t"));
  std::string read(6, ' ');
  ASSERT_TRUE(Open("s3://bucket/t")->Read("t", 0, AsWritableBytes(read)));
  EXPECT_EQ(read, "acebdf");
  MemoryBudget little(20);
  auto refused = Import(connection_, *OpenTorchFile({store_, "t.pt"}, {}), "s3://bucket/u", little);
  ASSERT_FALSE(refused);
}

}  // namespace
}  // namespace millrace::checkpoint
