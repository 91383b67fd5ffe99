#include "millrace/checkpoint/convert/model_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/tar_stream.h"
#include "millrace/checkpoint/convert/torch/pickle.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/format/safetensors.h"
#include "millrace/checkpoint/testing/thread_group.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

/// One entry of an archive, as POSIX's ustar has it.
std::string Entry(const std::string& name, std::string_view content, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  const auto number = [&](std::size_t at, int digits, std::uint64_t value) {
    header.replace(at, static_cast<std::size_t>(digits), fmt::format("{:0{}o}", value, digits));
  };
  number(100, 7, 0644);
  number(124, 11, content.size());
  header[156] = type;
  header.replace(257, 6, std::string_view("ustar\0", 6));
  header.replace(148, 8, "        ");
  std::uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  number(148, 6, sum);
  header[154] = '\0';
  std::string entry = header + std::string(content);
  entry.resize((entry.size() + 511) / 512 * 512);
  return entry;
}
const std::string kEnd(1024, '\0');

std::string Gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Safetensors() {
  std::vector<SafetensorsEntry> entries = {{"w", {DType::kU8, {4}}, 0}};
  return MakeSafetensorsHeader(entries) + "abcd";
}

class ModelArchiveTest : public ::testing::Test {
 protected:
  Result<ModelSource> Open(std::string archive, std::uint64_t most = 1 * kMiB) {
    EXPECT_TRUE(object::Put(*store_, "m/model.tar.gz", AsBytes(archive)));
    return OpenModelArchive(connection_, "s3://bucket/m/model.tar.gz", most, {});
  }
  std::string ErrorOf(std::string archive, std::uint64_t most = 1 * kMiB) {
    auto opened = Open(std::move(archive), most);
    return opened ? "opened" : opened.error().ToString();
  }
  static std::string Read(const ModelSource& model) {
    std::string bytes(4, ' ');
    EXPECT_TRUE(model.reader().Read(std::string(kModelGroup) + "w", 0, AsWritableBytes(bytes)));
    return bytes;
  }
  std::shared_ptr<object::Store> store_ = object::MakeMemoryStore();
  checkpoint::testing::StoreConnection connection_{store_};
};

TEST_F(ModelArchiveTest, OpensAModel) {
  const std::string config = R"({"model_type": "gptj"})";
  for (const std::string folder : {"", "./", "a/gpt-j/"}) {
    auto opened = Open(Gzip(Entry(folder + "config.json", config) + Entry(folder + "code/", "", '5') +
                            Entry(folder + "code/inference.py", "print(1)") + Entry(folder + "tokenizer.json", "{}") +
                            Entry(folder + "model.safetensors", Safetensors()) +
                            Entry(folder + "optimizer.pt", std::string(2 * kMiB, 'o')) + kEnd));
    ASSERT_TRUE(opened) << opened.error().ToString();
    EXPECT_EQ(Read(*opened), "abcd");
    EXPECT_EQ(*opened->File("tokenizer.json", 100), "{}");
    EXPECT_EQ(opened->reader().manifest().meta.at(std::string(kMetaModelConfig))["model_type"], "gptj");
    EXPECT_THAT(opened->name(), HasSubstr("model.tar.gz"));
  }
}

TEST_F(ModelArchiveTest, AnotherArchiveAtItsUrlIsAnotherVersion) {
  std::string version;
  for (const char last : {'d', 'x'}) {  // of as many bytes
    std::string weights = Safetensors();
    weights.back() = last;
    const auto opened =
        Open(Gzip(Entry("config.json", R"({"model_type": "gptj"})") + Entry("model.safetensors", weights) + kEnd));
    ASSERT_TRUE(opened) << opened.error().ToString();
    EXPECT_NE(*opened->Version(), version);
    version = *opened->Version();
    const auto again = OpenModelArchive(connection_, "s3://bucket/m/model.tar.gz", 1 * kMiB, {});
    ASSERT_TRUE(again) << again.error().ToString();
    EXPECT_EQ(*again->Version(), version);
  }
}

TEST_F(ModelArchiveTest, ReadsLongNamesAndSeveralMembers) {
  const std::string folder = std::string(150, 'f') + "/";
  const auto pax = [](const std::string& path) {
    std::string record = fmt::format(" path={}\n", path);
    record = std::to_string(record.size() + 3) + record;
    return Entry("PaxHeader", record, 'x');
  };
  const std::string one = pax(folder + "config.json") + Entry("short", "{}");
  const std::string two = Entry("././@LongLink", folder + "model.safetensors" + std::string(1, '\0'), 'L') +
                          Entry("short", Safetensors()) + kEnd;
  auto opened = Open(Gzip(one) + Gzip(two));
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_EQ(Read(*opened), "abcd");
}

TEST_F(ModelArchiveTest, RefusesWhatLeavesItOrIsNoFile) {
  for (const std::string name : {"../config.json", "/config.json", "a/../../config.json", "a//b.json"}) {
    EXPECT_THAT(ErrorOf(Gzip(Entry(name, "{}") + kEnd)), HasSubstr("is refused")) << name;
    EXPECT_EQ(Open(Gzip(Entry(name, "{}") + kEnd)).error().code(), Code::kCorrupt) << name;
  }
  for (const char type : {'1', '2'})
    EXPECT_THAT(ErrorOf(Gzip(Entry("config.json", "", type) + kEnd)), HasSubstr("link"));
  for (const char type : {'3', '4', '6', 'S'}) {
    EXPECT_EQ(Open(Gzip(Entry("config.json", "", type) + kEnd)).error().code(), Code::kUnsupported) << type;
  }
}

TEST_F(ModelArchiveTest, RefusesBombs) {
  const std::string large(3 * kMiB, 'x');
  EXPECT_EQ(Open(Gzip(Entry("config.json", "{}") + Entry("model.safetensors", large) + kEnd)).error().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(Open(Gzip(Entry("a.json", large.substr(0, kMiB)) + Entry("b.json", "1") + kEnd)).error().code(),
            Code::kResourceExhausted)
      << "together";
  EXPECT_THAT(ErrorOf(Gzip(Entry("config.json", "{}") + kEnd + std::string(20 * kMiB, '\0'))), HasSubstr("goes on"));
  EXPECT_THAT(ErrorOf(Gzip(Entry("x", large.substr(0, 2 * kMiB), 'x') + kEnd)), HasSubstr("extension"));
}

TEST_F(ModelArchiveTest, SaysWhatIsMissing) {
  EXPECT_EQ(OpenModelArchive(connection_, "s3://bucket/none.tar.gz", kMiB, {}).error().code(), Code::kNotFound);
  EXPECT_THAT(ErrorOf("no gzip"), HasSubstr("no gzip"));
  EXPECT_THAT(ErrorOf(Gzip("no tar" + std::string(600, 'x'))), HasSubstr("no tar"));
  EXPECT_THAT(ErrorOf(Gzip(Entry("x.txt", "x") + kEnd)), HasSubstr("no config.json"));
  EXPECT_THAT(ErrorOf(Gzip(Entry("config.json", "{}") + Entry("tf_model.h5", "x") + kEnd)), HasSubstr("tf_model.h5"));
  EXPECT_THAT(ErrorOf(Gzip(Entry("a/config.json", "{}") + Entry("b/config.json", "{}") + kEnd)), HasSubstr("several"));
  EXPECT_THAT(ErrorOf(Gzip(Entry("x.txt", "x") + Entry("x.txt", "y") + kEnd)), HasSubstr("two files"));
  const std::string whole = Gzip(Entry("config.json", "{}") + Entry("model.safetensors", Safetensors()) + kEnd);
  EXPECT_EQ(ErrorOf(whole), "opened");
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{20}}) {
    EXPECT_NE(ErrorOf(whole.substr(0, size)), "opened") << size;
  }
}

TEST_F(ModelArchiveTest, RunsNoCodeOfPickles) {
  std::string file;
  ZipWriter zip([&](ByteSpan bytes) {
    file += AsText(bytes);
    return Status();
  });
  ASSERT_TRUE(BeginTorchArchive(zip,
                                "\x80\x02"
                                "cos\nsystem\nX\x04\x00\x00\x00"
                                "true\x85R."));
  ASSERT_TRUE(EndTorchArchive(zip));
  for (const char* name : {"pytorch_model.bin", "gptj.pt"}) {
    const std::string error =
        ErrorOf(Gzip(Entry("config.json", R"({"model_type": "gptj"})") + Entry(name, file) + kEnd));
    EXPECT_THAT(error, HasSubstr(name));
    EXPECT_NE(error, "opened");
  }
}

TEST(TarStream, AnyBytesInAnyPiecesEndTheSameWay) {
  struct Notes final : TarVisitor {
    Status Begin(const std::string& name, std::uint64_t size) override {
      text += fmt::format("[{} {}", name, size);
      return {};
    }
    Status Data(ByteSpan bytes) override {
      text += AsText(bytes);
      return {};
    }
    Status End() override {
      text += "]";
      return {};
    }
    std::string text;
  };
  const std::string good = Entry("a", "one") + Entry("b/", "", '5') + Entry("c", std::string(600, 'c')) +
                           Entry("x", "10 path=d\n", 'x') + Entry("e", "") + kEnd;
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (std::uint64_t i = round == 0 ? 0 : random.Below(4); i > 0; --i) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    const auto read = [&](std::size_t most) {
      Notes notes;
      TarStream tar("test", notes);
      Status status;
      for (std::size_t at = 0; at < bytes.size() && status; at += most) {
        status = tar.Add(AsBytes(std::string_view(bytes).substr(at, most)));
      }
      if (status) status = tar.Finish();
      // What was told before an error may differ by a piece of data.
      return status ? notes.text : status.error().ToString();
    };
    EXPECT_EQ(read(1 + random.Below(700)), read(bytes.size()));
  }
}

}  // namespace
}  // namespace millrace::checkpoint
