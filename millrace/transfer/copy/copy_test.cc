#include "millrace/transfer/copy/copy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"
#include "millrace/transfer/local/upload_journal.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;
using object::Operation;

/// Sends each range up to a number of bytes, then breaks. Says which ETag its answers have.
class BreakingStore final : public object::ReadStore {
 public:
  BreakingStore(std::string content, std::string etag) : content_(std::move(content)), etag_(std::move(etag)) {}
  std::string Describe() const override { return "breaking:"; }
  void Head(std::string, object::Call, object::Done<std::optional<object::ObjectInfo>> done) override {
    done(std::nullopt);
  }
  void Get(std::string, object::GetOptions, MutableByteSpan, object::Call,
           object::Done<std::optional<object::GetResult>> done) override {
    done(std::nullopt);
  }
  void List(object::ListRequest, object::Call, object::Done<object::ListPage> done) override {
    done(object::ListPage());
  }
  void GetTo(std::string key, object::GetOptions options, std::uint64_t, object::Sink& sink, object::Call,
             object::Done<std::optional<object::GetResult>> done) override {
    const object::ByteRange range = *options.range;
    asked_.push_back(range);
    sink.Begin({.key = key, .etag = etag_});
    const std::uint64_t sent = std::min(range.length, breaks_after_);
    if (Status taken = sink.Take(range.offset, AsBytes(content_).subspan(range.offset, sent)); !taken)
      return done(Fail(taken.error()));
    if (sent < range.length) return done(Fail(Code::kUnavailable, "the connection broke"));
    done(object::GetResult{.bytes = sent, .info = {.key = key, .size = content_.size(), .etag = etag_}});
  }
  void BreakAfter(std::uint64_t bytes) { breaks_after_ = bytes; }
  /// Returns the ranges that were asked for since the last call.
  std::vector<object::ByteRange> Asked() { return std::exchange(asked_, {}); }

 private:
  const std::string content_, etag_;
  std::uint64_t breaks_after_ = 0;
  std::vector<object::ByteRange> asked_;
};

class CopyTest : public testing::Test {
 protected:
  std::string Noise(std::size_t size) {
    std::string text(size, '\0');
    Random random(size + 1);
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }
  std::string Path(const std::string& name) { return (folder_.path() / name).string(); }
  std::string Content(const std::string& key) {
    auto content = object::GetAll(*store_, key, kGiB);
    return content && *content ? (*content)->bytes : "<absent>";
  }
  std::size_t FilesLeft() {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) count += entry.is_regular_file();
    return count;
  }

  TempDir folder_ = std::move(*TempDir::Create());
  std::shared_ptr<object::FaultStore> store_ = object::FaultStore::Create(
      object::MakeMemoryStore({.limits = {.min_part = 1000, .max_part = 3'000'000, .max_put = 50'000}}));
  CopySettings settings_{.part_bytes = 4000, .parallel_parts = 4};
};

TEST_F(CopyTest, ThereAndBack) {
  for (std::size_t size : {0u, 1u, 4000u, 4001u, 77'777u}) {
    std::string content = Noise(size);
    ASSERT_TRUE(WriteFileAtomic(Path("in"), AsBytes(content)));
    std::uint64_t moved = 0;
    settings_.on_bytes = [&](std::uint64_t n) { moved += n; };
    ASSERT_TRUE(Upload(Path("in"), *store_, "k", {}, settings_, {}));
    EXPECT_EQ(moved, size);
    EXPECT_EQ(Content("k"), content);
    object::ObjectInfo info = **object::Head(*store_, "k");
    ASSERT_TRUE(Download(*store_, info, Path("new/folder/out"), settings_, {}));
    EXPECT_EQ(*ReadFile(Path("new/folder/out")), content);
    struct stat status;
    ASSERT_EQ(stat(Path("new/folder/out").c_str(), &status), 0);
    EXPECT_EQ(status.st_mtim.tv_sec, std::chrono::system_clock::to_time_t(info.modified));
    ASSERT_TRUE(CopyFile(Path("new/folder/out"), Path("copy"), settings_, {}));
    EXPECT_EQ(*ReadFile(Path("copy")), content);
  }
}

TEST_F(CopyTest, WhatIsNoFileIsNotReplaced) {
  const std::string content = Noise(20'000);  // in parts
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes(content)));
  ASSERT_TRUE(object::Put(*store_, "small", AsBytes("small")));
  ASSERT_TRUE(WriteFileAtomic(Path("in"), AsBytes(content)));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", Path("link"));
  for (const char* name : {"fifo", "link"}) {
    EXPECT_EQ(Download(*store_, **object::Head(*store_, "k"), Path(name), settings_, {}).error().code(),
              Code::kInvalidArgument);
    EXPECT_FALSE(Download(*store_, **object::Head(*store_, "small"), Path(name), settings_, {}));
    EXPECT_FALSE(CopyFile(Path("in"), Path(name), settings_, {}));
  }
  EXPECT_EQ(Upload(Path("fifo"), *store_, "new", {}, settings_, {}).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(fs::is_fifo(Path("fifo")));
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(FilesLeft(), 1u);
}

TEST_F(CopyTest, AFileThatIsReplacedKeepsItsPermissions) {
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes(Noise(20'000))));
  ASSERT_TRUE(WriteFileAtomic(Path("in"), AsBytes("in")));
  auto mode = [&](const std::string& path) {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return status.st_mode & 0777;
  };
  ASSERT_TRUE(WriteFileAtomic(Path("private"), AsBytes("old"), 0600));
  mode_t meanwhile = 0;
  settings_.on_bytes = [&](std::uint64_t) {
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with(".millrace~tmp-") && entry.path().extension() != ".journal") {
        meanwhile |= mode(entry.path());
      }
    }
  };
  settings_.parallel_parts = 1;
  ASSERT_TRUE(Download(*store_, **object::Head(*store_, "k"), Path("private"), settings_, {}));
  EXPECT_EQ(mode(Path("private")), 0600u);
  EXPECT_EQ(meanwhile, 0600u) << "nor does the hidden file show the content to others";
  ASSERT_TRUE(WriteFileAtomic(Path("read-only"), AsBytes("old"), 0440));
  ASSERT_TRUE(CopyFile(Path("in"), Path("read-only"), settings_, {}));
  EXPECT_EQ(mode(Path("read-only")), 0440u);
}

TEST_F(CopyTest, AFileThatAnotherUserLaidReadyIsNotWrittenTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to other users";
  const std::string content = Noise(20'000);
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes(content)));
  // Anybody can make it in a folder such as /tmp, and could go on writing to it.
  const Sha256Digest digest = Sha256(AsBytes("out"));
  const std::string theirs = Path(".millrace~tmp-" + HexEncode(ByteSpan(digest).first(8)));
  ASSERT_TRUE(WriteFileAtomic(theirs, AsBytes("theirs"), 0666));
  ASSERT_EQ(::chown(theirs.c_str(), 54321, 54321), 0);
  ASSERT_TRUE(Download(*store_, **object::Head(*store_, "k"), Path("out"), settings_, {}));
  EXPECT_EQ(*ReadFile(Path("out")), content);
  struct stat made{};
  ASSERT_EQ(::stat(Path("out").c_str(), &made), 0);
  EXPECT_EQ(made.st_uid, 0u);
  EXPECT_EQ(*ReadFile(theirs), "theirs");
}

TEST_F(CopyTest, UploadsAreRememberedInAFolderOfOnesOwnAlone) {
  const UploadJournal::PendingUpload entry{.source = "file", .part_bytes = 4000, .upload_id = "id"};
  const std::string folder = Path("transfers"), destination = "s3://bucket/key";
  ASSERT_TRUE(UploadJournal::Open(folder, destination)->Write(entry));
  EXPECT_EQ(UploadJournal::Open(folder, destination)->entry()->upload_id, "id");
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  auto journal = UploadJournal::Open(folder, destination);
  ASSERT_TRUE(journal);
  EXPECT_FALSE(journal->entry());
  EXPECT_FALSE(journal->remembers());
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  fs::create_directory_symlink(folder, Path("link"));
  EXPECT_FALSE(UploadJournal::Open(Path("link"), destination)->remembers());
}

TEST_F(CopyTest, LargeDownloadsMayHaveLargerParts) {
  const std::string content = Noise(50'000);
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes(content)));
  object::ObjectInfo info = **object::Head(*store_, "k");
  Mutex mutex;
  std::map<std::uint64_t, int> sizes;  // of parts
  settings_.on_bytes = [&](std::uint64_t bytes) {
    MutexLock lock(mutex);
    ++sizes[bytes];
  };
  ASSERT_TRUE(Download(*store_, info, Path("out"), settings_, {}));
  EXPECT_EQ(sizes, (std::map<std::uint64_t, int>{{4000, 12}, {2000, 1}}));
  sizes.clear();
  settings_.larger_download_parts = true;  // 13 parts, 4 at a time: six go together, and leave two and a rest
  ASSERT_TRUE(Download(*store_, info, Path("out"), settings_, {}));
  EXPECT_EQ(sizes, (std::map<std::uint64_t, int>{{24'000, 2}, {2000, 1}}));
  EXPECT_EQ(*ReadFile(Path("out")), content);
}

TEST_F(CopyTest, ADownloadGoesOnWithinItsParts) {
  const std::string content = Noise(9 * kMiB + 77);
  BreakingStore store(content, "e");
  const object::ObjectInfo info{.key = "k", .size = content.size(), .etag = "e"};
  settings_ = {.part_bytes = 4 * kMiB, .parallel_parts = 1, .verify = false};
  std::uint64_t resumed = 0;
  settings_.on_resumed = [&](std::uint64_t bytes) { resumed = bytes; };
  // The first try ends in the third block of the first part, the second try in the second block of the second part.
  store.BreakAfter(2 * kMiB + 5);
  EXPECT_EQ(Download(store, info, Path("out"), settings_, {}).error().code(), Code::kUnavailable);
  EXPECT_EQ(store.Asked(), (std::vector<object::ByteRange>{{0, 4 * kMiB}}));
  store.BreakAfter(2 * kMiB);
  EXPECT_EQ(Download(store, info, Path("out"), settings_, {}).error().code(), Code::kUnavailable);
  EXPECT_EQ(resumed, 2 * kMiB);
  EXPECT_EQ(store.Asked(), (std::vector<object::ByteRange>{{2 * kMiB, 2 * kMiB}, {4 * kMiB, 4 * kMiB}}));
  store.BreakAfter(kGiB);
  ASSERT_TRUE(Download(store, info, Path("out"), settings_, {}));
  EXPECT_EQ(resumed, 6 * kMiB);
  EXPECT_EQ(store.Asked(), (std::vector<object::ByteRange>{{6 * kMiB, 2 * kMiB}, {8 * kMiB, kMiB + 77}}));
  EXPECT_TRUE(*ReadFile(Path("out")) == content);
  EXPECT_EQ(FilesLeft(), 1u);
}

TEST_F(CopyTest, BytesOfAnotherVersionDoNotCount) {
  const std::string content = Noise(4 * kMiB);
  BreakingStore store(content, "another");
  const object::ObjectInfo info{.key = "k", .size = content.size(), .etag = "e"};
  settings_ = {.part_bytes = 2 * kMiB, .parallel_parts = 1, .verify = false};
  store.BreakAfter(kMiB);
  EXPECT_FALSE(Download(store, info, Path("out"), settings_, {}));
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(CopyTest, AFailedDownloadLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("out"), AsBytes("old")));
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes(Noise(20'000))));
  object::ObjectInfo info = **object::Head(*store_, "k");
  store_->Add({.operation = Operation::kGet, .skip = 2, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_FALSE(Download(*store_, info, Path("out"), settings_, {}));
  EXPECT_EQ(*ReadFile(Path("out")), "old");
  EXPECT_EQ(FilesLeft(), 1u);
  ASSERT_TRUE(object::Put(*store_, "k", AsBytes("other version")));
  EXPECT_EQ(Download(*store_, info, Path("out"), settings_, {}).error().code(), Code::kStale);
  EXPECT_EQ(*ReadFile(Path("out")), "old");
}

TEST_F(CopyTest, AFailedUploadLeavesNothing) {
  ASSERT_TRUE(WriteFileAtomic(Path("in"), AsBytes(Noise(20'000))));
  store_->Add({.operation = Operation::kUploadPart, .skip = 2, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(Upload(Path("in"), *store_, "k", {}, settings_, {}).error().code(), Code::kPermissionDenied);
  EXPECT_EQ(Content("k"), "<absent>");
  EXPECT_TRUE(object::ListUploads(*store_, "")->empty());
}

TEST_F(CopyTest, OnlyRegularFilesGoUp) {
  EXPECT_EQ(Upload(Path(""), *store_, "k", {}, settings_, {}).error().code(), Code::kIsDirectory);
  EXPECT_EQ(Upload(Path("absent"), *store_, "k", {}, settings_, {}).error().code(), Code::kNotFound);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Upload(Path("pipe"), *store_, "k", {}, settings_, {}).error().code(), Code::kInvalidArgument);
}

TEST_F(CopyTest, LargeObjectsAreCopiedInParts) {
  // Copies of more than max_put (50,000 bytes) go by parts of at most max_part (3,000,000).
  auto store = object::MakeMemoryStore({.limits = {.min_part = 1, .max_part = 3'000'000, .max_put = 50'000}});
  std::string content = Noise(7'000'000);
  std::string id = *object::CreateMultipart(*store, "k", {.content_type = "text/x", .metadata = {{"a", "1"}}});
  std::vector<object::PartInfo> parts;
  for (int i = 0; i < 7; ++i) {
    parts.push_back(*object::UploadPart(*store, "k", id, i + 1, AsBytes(content).subspan(i * 1'000'000, 1'000'000)));
  }
  ASSERT_TRUE(object::CompleteMultipart(*store, "k", id, parts));
  object::ObjectInfo info = **object::Head(*store, "k");
  ASSERT_TRUE(CopyObject(*store, info, *store, "copy", {}, settings_, {}));
  EXPECT_EQ((*object::GetAll(*store, "copy", kGiB))->bytes, content);
  object::ObjectInfo copied = **object::Head(*store, "copy");
  EXPECT_EQ(copied.content_type, "text/x");
  EXPECT_EQ(copied.metadata, info.metadata);
  info.etag = "another";
  EXPECT_FALSE(CopyObject(*store, info, *store, "copy2", {}, settings_, {}));
  EXPECT_TRUE(object::ListUploads(*store, "")->empty());
}

TEST_F(CopyTest, NamesThatLeadAwayAreRefused) {
  EXPECT_EQ(*LocalPath("/d", "a/b"), "/d/a/b");
  for (const char* name : {"../x", "a/../../x", "..", "a//b", "/etc/passwd", "", "a/", "./a"}) {
    auto path = LocalPath("/d", name);
    ASSERT_FALSE(path) << name;
    EXPECT_EQ(path.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::transfer
