// Transfers that are cut off and begun again, against the embedded endpoint: the same bytes in the end, nothing moved
// twice that was moved whole.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/s3d/server.h"
#include "millrace/transfer/copy/compare.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/verify.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;
using object::Operation;

constexpr std::uint64_t kPart = 5000;
constexpr std::size_t kParts = 9, kSize = (kParts - 1) * kPart + 1234;

class TransferResume : public testing::Test {
 protected:
  void SetUp() override {
    server_ = *s3d::Server::Start({.root = folder_.path() / "s3d",
                                   .access_key = object::kTestAccessKey,
                                   .secret_key = object::kTestSecretKey,
                                   .sync = false,
                                   .min_part_bytes = 1});
    bucket_ = *object::NewBucket(server_->endpoint());
    store_ = object::FaultStore::Create(std::make_shared<SmallParts>(bucket_->store));
    settings_.journal_folder = Path("state");
    settings_.on_bytes = [this](std::uint64_t bytes) { moved_ += bytes; };
    settings_.on_resumed = [this](std::uint64_t bytes) { resumed_ += bytes; };
  }

  /// S3Store has S3's limits; the endpoint here takes smaller parts.
  class SmallParts : public object::Store {
   public:
    explicit SmallParts(std::shared_ptr<object::Store> inner) : inner_(std::move(inner)) {}
    std::string Describe() const override { return inner_->Describe(); }
    object::Limits limits() const override { return {.min_part = 1, .max_put = 2 * kSize}; }
    void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override {
      inner_->Head(key, call, std::move(done));
    }
    void HeadPart(std::string key, std::string etag, int number, object::Call call,
                  object::Done<std::optional<std::uint64_t>> done) override {
      inner_->HeadPart(key, etag, number, call, std::move(done));
    }
    void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
             object::Done<std::optional<object::GetResult>> done) override {
      inner_->Get(key, options, into, call, std::move(done));
    }
    void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
      inner_->List(request, call, std::move(done));
    }
    void Put(std::string key, object::Payload body, object::PutOptions options, object::Call call,
             object::Done<object::PutResult> done) override {
      inner_->Put(key, body, options, call, std::move(done));
    }
    void Delete(std::string key, object::Call call, object::Done<void> done) override {
      inner_->Delete(key, call, std::move(done));
    }
    void DeleteMany(std::vector<std::string> keys, object::Call call,
                    object::Done<std::vector<object::DeleteFailure>> done) override {
      inner_->DeleteMany(keys, call, std::move(done));
    }
    void Copy(std::string source, std::string destination, object::CopyOptions options, object::Call call,
              object::Done<object::PutResult> done) override {
      inner_->Copy(source, destination, options, call, std::move(done));
    }
    void CreateMultipart(std::string key, object::PutOptions options, object::Call call,
                         object::Done<std::string> done) override {
      inner_->CreateMultipart(key, options, call, std::move(done));
    }
    void UploadPart(std::string key, std::string id, int number, object::Payload body, object::Call call,
                    object::Done<object::PartInfo> done) override {
      inner_->UploadPart(key, id, number, body, call, std::move(done));
    }
    void CopyPart(std::string key, std::string id, int number, std::string source, object::ByteRange range,
                  object::CopyOptions options, object::Call call, object::Done<object::PartInfo> done) override {
      inner_->CopyPart(key, id, number, source, range, options, call, std::move(done));
    }
    void CompleteMultipart(std::string key, std::string id, std::vector<object::PartInfo> parts,
                           object::PutOptions options, object::Call call,
                           object::Done<object::PutResult> done) override {
      inner_->CompleteMultipart(key, id, parts, options, call, std::move(done));
    }
    void AbortMultipart(std::string key, std::string id, object::Call call, object::Done<void> done) override {
      inner_->AbortMultipart(key, id, call, std::move(done));
    }
    void ListParts(std::string key, std::string id, object::Call call,
                   object::Done<std::vector<object::PartInfo>> done) override {
      inner_->ListParts(key, id, call, std::move(done));
    }
    void ListUploads(std::string prefix, object::Call call,
                     object::Done<std::vector<object::UploadInfo>> done) override {
      inner_->ListUploads(prefix, call, std::move(done));
    }
    Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid) override {
      return inner_->Presign(method, key, valid);
    }

   private:
    const std::shared_ptr<object::Store> inner_;
  };

  static std::string Noise(std::size_t size, std::uint64_t seed) {
    std::string text(size, '\0');
    Random random(seed);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }
  std::string Path(const std::string& name) { return (folder_.path() / name).string(); }
  void WriteIn(const std::string& content) { ASSERT_TRUE(WriteFileAtomic(Path("in"), AsBytes(content))); }
  std::string Content(const std::string& key) {
    auto content = object::GetAll(*bucket_->store, key, kGiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  object::ObjectInfo PutObject(const std::string& content) {
    EXPECT_TRUE(object::Put(*bucket_->store, "k", AsBytes(content)));
    return **object::Head(*bucket_->store, "k");
  }
  /// From now on all calls of this kind fail after `after` that do not: what a process leaves that dies then.
  void Cut(Operation operation, int after) {
    store_->Clear();
    store_->Add({.operation = operation, .skip = after, .times = -1, .fault = {.code = Code::kUnavailable}});
  }
  std::uint64_t CallsOf(Operation operation) {
    return store_->calls(operation) - std::exchange(seen_[operation], store_->calls(operation));
  }
  std::size_t Hidden(const std::string& folder) {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(Path(folder))) {
      count += entry.path().filename().string().starts_with(".millrace~");
    }
    return count;
  }
  /// Files in the folder of upload journals that are not its marker.
  std::size_t Journals() {
    return static_cast<std::size_t>(std::ranges::count_if(fs::directory_iterator(Path("state")), [](const auto& entry) {
      return entry.path().filename() != ".millrace-folder";
    }));
  }
  std::size_t Uploads() { return object::ListUploads(*bucket_->store, "")->size(); }

  TempDir folder_ = *TempDir::Create();
  std::unique_ptr<s3d::Server> server_;
  std::shared_ptr<object::Bucket> bucket_;
  std::shared_ptr<object::FaultStore> store_;
  std::map<Operation, std::uint64_t> seen_;
  std::atomic<std::uint64_t> moved_ = 0, resumed_ = 0;
  CopySettings settings_{.part_bytes = kPart, .parallel_parts = 1};
};

TEST_F(TransferResume, ADownloadGoesOnWhereItWas) {
  const std::string content = Noise(kSize, 1);
  object::ObjectInfo info = PutObject(content);
  for (int after : {1, 4, static_cast<int>(kParts) - 1}) {
    fs::remove_all(Path("out"));
    Cut(Operation::kGet, after);
    EXPECT_EQ(Download(*store_, info, Path("out/file"), settings_, {}).error().code(), Code::kUnavailable);
    EXPECT_FALSE(fs::exists(Path("out/file")));
    EXPECT_EQ(Hidden("out"), 2u);
    store_->Clear();
    CallsOf(Operation::kGet);
    moved_ = resumed_ = 0;
    ASSERT_TRUE(Download(*store_, info, Path("out/file"), settings_, {}));
    EXPECT_EQ(*ReadFile(Path("out/file")), content);
    EXPECT_EQ(CallsOf(Operation::kGet), kParts - static_cast<std::size_t>(after));
    EXPECT_EQ(resumed_, static_cast<std::uint64_t>(after) * kPart);
    EXPECT_EQ(moved_ + resumed_, kSize);
    EXPECT_EQ(Hidden("out"), 0u);
  }
}

TEST_F(TransferResume, ADownloadOfAnotherVersionStartsOver) {
  object::ObjectInfo info = PutObject(Noise(kSize, 1));
  Cut(Operation::kGet, 4);
  EXPECT_FALSE(Download(*store_, info, Path("out/file"), settings_, {}));
  store_->Clear();
  const std::string changed = Noise(kSize, 2);
  object::ObjectInfo now = PutObject(changed);
  CallsOf(Operation::kGet);
  EXPECT_EQ(Download(*store_, info, Path("out/file"), settings_, {}).error().code(), Code::kStale);
  EXPECT_EQ(Hidden("out"), 0u);
  CallsOf(Operation::kGet);
  ASSERT_TRUE(Download(*store_, now, Path("out/file"), settings_, {}));
  EXPECT_EQ(CallsOf(Operation::kGet), kParts);
  EXPECT_EQ(*ReadFile(Path("out/file")), changed);
}

TEST_F(TransferResume, PartsThatTheDiskLostAreFetchedAgain) {
  const std::string content = Noise(kSize, 1);
  object::ObjectInfo info = PutObject(content);
  Cut(Operation::kGet, 4);
  EXPECT_FALSE(Download(*store_, info, Path("out/file"), settings_, {}));
  for (const auto& entry : fs::directory_iterator(Path("out"))) {
    if (entry.path().extension() == ".journal") {  // its last line was cut short
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 3);
      continue;
    }
    UniqueFd fd = *OpenFile(entry.path(), O_WRONLY);  // a byte of the second part never reached the disk
    ASSERT_TRUE(WriteFully(fd.get(), AsBytes(std::string("\0", 1)), kPart + 7, "test"));
  }
  store_->Clear();
  CallsOf(Operation::kGet);
  ASSERT_TRUE(Download(*store_, info, Path("out/file"), settings_, {}));
  EXPECT_EQ(CallsOf(Operation::kGet), kParts - 2);
  EXPECT_EQ(*ReadFile(Path("out/file")), content);
}

TEST_F(TransferResume, TwoDownloadsOfOneFileDoNotMix) {
  const std::string content = Noise(kSize, 1);
  object::ObjectInfo info = PutObject(content);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(Download(*store_, info, Path("out/file"), settings_, {})); });
  }
  threads.clear();
  EXPECT_EQ(*ReadFile(Path("out/file")), content);
  EXPECT_EQ(Hidden("out"), 0u);
}

TEST_F(TransferResume, AnUploadGoesOnWhereItWas) {
  const std::string content = Noise(kSize, 1);
  WriteIn(content);
  for (int after : {1, 4, static_cast<int>(kParts) - 1}) {
    Cut(Operation::kUploadPart, after);
    EXPECT_EQ(Upload(Path("in"), *store_, "k", {}, settings_, {}).error().code(), Code::kUnavailable);
    EXPECT_EQ(Content("k"), "<absent>");
    EXPECT_EQ(Uploads(), 1u);
    store_->Clear();
    CallsOf(Operation::kUploadPart);
    ASSERT_TRUE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
    EXPECT_EQ(Content("k"), content);
    EXPECT_EQ(CallsOf(Operation::kUploadPart), kParts - static_cast<std::size_t>(after));
    EXPECT_EQ(Uploads(), 0u);
    EXPECT_EQ(Journals(), 0u);
    ASSERT_TRUE(object::Delete(*bucket_->store, "k"));
  }
}

TEST_F(TransferResume, AnUploadOfAChangedFileStartsOver) {
  WriteIn(Noise(kSize, 1));
  Cut(Operation::kUploadPart, 4);
  EXPECT_FALSE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
  store_->Clear();
  const std::string changed = Noise(kSize, 2);
  WriteIn(changed);
  CallsOf(Operation::kUploadPart);
  ASSERT_TRUE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
  EXPECT_EQ(CallsOf(Operation::kUploadPart), kParts);
  EXPECT_EQ(Content("k"), changed);
  EXPECT_EQ(Uploads(), 0u) << "the upload of the old bytes is gone";
}

TEST_F(TransferResume, AnUploadThatTheStoreForgotStartsOver) {
  const std::string content = Noise(kSize, 1);
  WriteIn(content);
  Cut(Operation::kUploadPart, 4);
  EXPECT_FALSE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
  store_->Clear();
  const auto uploads = *object::ListUploads(*bucket_->store, "");
  for (const auto& upload : uploads) {
    ASSERT_TRUE(object::AbortMultipart(*bucket_->store, upload.key, upload.upload_id));
  }
  ASSERT_TRUE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
  EXPECT_EQ(Content("k"), content);
}

TEST_F(TransferResume, AnUploadThatFailsForGoodLeavesNothing) {
  WriteIn(Noise(kSize, 1));
  store_->Add({.operation = Operation::kUploadPart, .skip = 2, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(Upload(Path("in"), *store_, "k", {}, settings_, {}).error().code(), Code::kPermissionDenied);
  EXPECT_EQ(Uploads(), 0u);
  EXPECT_EQ(Journals(), 0u);
}

TEST_F(TransferResume, AWrongChecksumIsFoundOut) {
  const std::string content = Noise(kSize, 1);
  object::ObjectInfo info = PutObject(content);
  ASSERT_EQ(info.checksum.algorithm, object::Checksum::Algorithm::kCrc32c);
  for (auto algorithm : {object::Checksum::Algorithm::kCrc32c, object::Checksum::Algorithm::kCrc64Nvme,
                         object::Checksum::Algorithm::kMd5}) {
    info.checksum = {algorithm, "wrong"};
    EXPECT_EQ(Download(*store_, info, Path("out/file"), settings_, {}).error().code(), Code::kCorrupt);
    EXPECT_EQ(Hidden("out"), 0u);
    EXPECT_FALSE(fs::exists(Path("out/file")));
  }
}

/// An object of parts of these sizes, and what is known of it.
class TransferParts : public TransferResume {
 protected:
  object::ObjectInfo PutParts(const std::vector<std::size_t>& sizes, std::string& content) {
    const std::string id = *object::CreateMultipart(*bucket_->store, "k");
    std::vector<object::PartInfo> parts;
    std::string md5s, crcs;
    for (std::size_t size : sizes) {
      const std::string part = Noise(size, size);
      parts.push_back(*object::UploadPart(*bucket_->store, "k", id, static_cast<int>(parts.size()) + 1, AsBytes(part)));
      content += part;
      Hasher md5(Hasher::Algorithm::kMd5);
      md5.Update(AsBytes(part));
      md5s += AsText(md5.Finish());
      crcs += Crc32cChecksum(Crc32c(AsBytes(part))).value;
    }
    EXPECT_TRUE(object::CompleteMultipart(*bucket_->store, "k", id, parts));
    Hasher md5(Hasher::Algorithm::kMd5);
    md5.Update(AsBytes(md5s));
    by_etag_ = {object::Checksum::Algorithm::kMd5, std::string(AsText(md5.Finish())), static_cast<int>(sizes.size())};
    by_crc_ = {object::Checksum::Algorithm::kCrc32c, Crc32cChecksum(Crc32c(AsBytes(crcs))).value, by_etag_.parts};
    return **object::Head(*bucket_->store, "k");
  }
  object::Checksum by_etag_, by_crc_;
};

/// Bytes that this process has asked the kernel to read or to send from files.
std::uint64_t BytesReadOrSent() {
  const std::string io = *ReadFile("/proc/self/io", 4096);
  return std::stoull(io.substr(io.find("rchar: ") + 7));
}

TEST_F(TransferParts, PartsAreHashedWhileTheyArriveAndNotReadAgain) {
  std::string content;
  object::ObjectInfo info = PutParts({600'000, 600'000, 600'000, 200'000}, content);
  info.checksum = by_etag_;
  const std::uint64_t before = BytesReadOrSent();
  ASSERT_TRUE(Download(*store_, info, Path("out/file"), settings_, {}));
  const std::uint64_t once = BytesReadOrSent() - before;
  EXPECT_EQ(*ReadFile(Path("out/file")), content);
  EXPECT_LT(once, content.size() * 5 / 4) << "the endpoint, in this process too, sends them once";
}

TEST_F(TransferParts, ChecksumsOfPartsAreHeldAgainstTheBytes) {
  for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>{7000, 7000, 7000, 123},
                                                {4000, 9000, 6000},  // no even cut has as many parts
                                                {6000, 7000, 5000},  // an even one would have
                                                {12'000}}) {
    std::string content;
    object::ObjectInfo info = PutParts(sizes, content);
    EXPECT_EQ(info.etag, fmt::format("{}-{}", HexEncode(AsBytes(by_etag_.value)), sizes.size()));
    for (const object::Checksum& right : {by_etag_, by_crc_}) {
      fs::remove_all(Path("out"));
      info.checksum = right;
      Status got = Download(*store_, info, Path("out/file"), settings_, {});
      ASSERT_TRUE(got) << got.error().ToString();
      EXPECT_EQ(*ReadFile(Path("out/file")), content);
      ComparedItem remote{.store = store_.get(), .info = info};
      ComparedItem local{.local = true, .info = {.key = Path("out/file").substr(1), .size = info.size}};
      EXPECT_TRUE(*SameContent(remote, local, {}));
      remote.info.checksum.value[1] ^= 1;
      EXPECT_FALSE(*SameContent(remote, local, {}));
      info.checksum.value[0] ^= 1;
      got = Download(*store_, info, Path("out/other"), settings_, {});
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().code(), Code::kCorrupt);
    }
  }
}

TEST_F(TransferParts, WhereTheStoreTellsNoSizesNothingIsClaimed) {
  std::string content;
  object::ObjectInfo info = PutParts({7000, 7000}, content);
  class Silent final : public SmallParts {
   public:
    using SmallParts::SmallParts;
    void HeadPart(std::string, std::string, int, object::Call,
                  object::Done<std::optional<std::uint64_t>> done) override {
      done(std::nullopt);
    }
  };
  Silent silent(bucket_->store);
  info.checksum = by_etag_;
  info.checksum.value[0] ^= 1;
  EXPECT_TRUE(Download(silent, info, Path("out/file"), settings_, {}));
  ComparedItem remote{.store = &silent, .info = info};
  ComparedItem local{.local = true, .info = {.key = Path("out/file").substr(1), .size = info.size}};
  EXPECT_FALSE(*SameContent(remote, local, {}));
}

}  // namespace
}  // namespace millrace::transfer
