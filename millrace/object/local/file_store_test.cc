#include "millrace/object/local/file_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/paths.h"
#include "millrace/object/local/walk.h"

namespace millrace::object {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class FileStoreTest : public testing::Test {
 protected:
  FileStoreTest() : folder_(std::move(*TempDir::Create())), root_(folder_.path() / "root") {
    fs::create_directory(root_);
    store_ = *OpenFileStore({.root = root_, .durable = false, .threads = 2});
  }
  void WriteByHand(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::vector<std::string> Keys(ListRequest request = {}) {
    std::vector<std::string> keys;
    EXPECT_TRUE(ListAll(*store_, std::move(request), [&](const ListPage& page) {
      for (const auto& object : page.objects) keys.push_back(object.key);
      for (const auto& prefix : page.common_prefixes) keys.push_back(prefix);
      return true;
    }));
    return keys;
  }

  TempDir folder_;
  fs::path root_;
  std::shared_ptr<Store> store_;
};

TEST_F(FileStoreTest, KeysAreThePathsOfPlainFiles) {
  WriteByHand(root_ / "a/b.txt", "by hand");
  auto content = GetAll(*store_, "a/b.txt", 100);
  ASSERT_TRUE(content && *content);
  EXPECT_EQ((*content)->bytes, "by hand");
  ASSERT_TRUE(Put(*store_, "c/d", AsBytes("by store")));
  EXPECT_EQ(*ReadFile(root_ / "c/d"), "by store");
  EXPECT_EQ(fs::status(root_ / "c/d").permissions() & fs::perms::owner_all,
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(Keys(), ElementsAre("a/b.txt", "c/d"));
}

TEST_F(FileStoreTest, AChangeByAnotherProgramIsANewVersion) {
  WriteByHand(root_ / "k", "one");
  auto before = Head(*store_, "k");
  WriteByHand(root_ / "k", "two");
  fs::last_write_time(root_ / "k", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  std::byte into[3];
  auto got = Get(*store_, "k", {.if_match = (*before)->etag}, into);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kPreconditionFailed);
}

TEST_F(FileStoreTest, NothingLeadsOutOfTheRoot) {
  WriteByHand(folder_.path() / "secret", "secret");
  fs::create_symlink(folder_.path(), root_ / "absolute");
  fs::create_symlink("..", root_ / "relative");
  fs::create_symlink("../secret", root_ / "file");
  for (const char* key : {"../secret", "absolute/secret", "relative/secret", "file", "x/../../secret"}) {
    auto head = Head(*store_, key);
    EXPECT_TRUE(head && !*head) << key;
    (void)Put(*store_, key, AsBytes("overwritten"));
    EXPECT_EQ(*ReadFile(folder_.path() / "secret"), "secret") << key;
    (void)Delete(*store_, key);
    EXPECT_TRUE(fs::exists(folder_.path() / "secret")) << key;
  }
}

TEST_F(FileStoreTest, LinksWithinTheRootAreFollowedAndLoopsEnd) {
  WriteByHand(root_ / "data/x", "x");
  fs::create_symlink("data", root_ / "link");
  fs::create_symlink("..", root_ / "data/loop");
  fs::create_symlink("nowhere", root_ / "dangling");
  EXPECT_THAT(Keys(), ElementsAre("data/x", "link/x"));
}

TEST_F(FileStoreTest, ObjectsAndFoldersExcludeEachOther) {
  ASSERT_TRUE(Put(*store_, "a/b", AsBytes("x")));
  auto over_folder = Put(*store_, "a", AsBytes("x"));
  ASSERT_FALSE(over_folder);
  EXPECT_EQ(over_folder.error().code(), Code::kIsDirectory);
  auto beneath_object = Put(*store_, "a/b/c", AsBytes("x"));
  ASSERT_FALSE(beneath_object);
  EXPECT_EQ(beneath_object.error().code(), Code::kNotDirectory);
  EXPECT_FALSE(*Head(*store_, "a"));
  EXPECT_FALSE(*Head(*store_, "a/b/c"));
  ASSERT_TRUE(Delete(*store_, "a/b"));
  EXPECT_TRUE(Put(*store_, "a", AsBytes("x"))) << "the folder went with its last object";
}

TEST_F(FileStoreTest, LongSegmentsAreRefused) {
  auto put = Put(*store_, std::string(256, 'x'), AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kNameTooLong);
}

TEST_F(FileStoreTest, PrunesOnlyWhenAskedTo) {
  ASSERT_TRUE(Put(*store_, "a/b/c", AsBytes("x")));
  ASSERT_TRUE(Delete(*store_, "a/b/c"));
  EXPECT_FALSE(fs::exists(root_ / "a"));
  auto keeping = *OpenFileStore({.root = root_, .prune_folders = false, .durable = false});
  ASSERT_TRUE(Put(*keeping, "a/b/c", AsBytes("x")));
  ASSERT_TRUE(Delete(*keeping, "a/b/c"));
  EXPECT_TRUE(fs::exists(root_ / "a/b"));
  EXPECT_TRUE(Keys({.delimiter = "/"}).empty()) << "an empty folder is no prefix";
}

TEST_F(FileStoreTest, FailedWritesAndUploadsLeaveNothing) {
  ASSERT_TRUE(Put(*store_, "k", AsBytes("x")));
  EXPECT_FALSE(Put(*store_, "k", AsBytes("y"), {.if_none_match = true}));
  std::stop_source stop;
  auto id = CreateMultipart(*store_, "deep/er/k2");
  ASSERT_TRUE(id);
  ASSERT_TRUE(UploadPart(*store_, "deep/er/k2", *id, 1, AsBytes("x")));
  ASSERT_TRUE(AbortMultipart(*store_, "deep/er/k2", *id));
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ElementsAre("k"));
}

TEST_F(FileStoreTest, ErrorsNameTheWholePath) {
  const auto put = Put(*OpenFileStore({.root = "/", .durable = false, .threads = 1}).value(), "proc/k", AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_THAT(put.error().ToString(), testing::HasSubstr(" /proc/k"));
}

/// The only upload's folder below the root.
fs::path UploadFolder(const fs::path& root) {
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.path().filename().string().starts_with(kUploadName)) return entry.path();
  return {};
}

TEST_F(FileStoreTest, PartsOfOneSizeAreWrittenOnce) {
  auto id = *CreateMultipart(*store_, "a/k");
  std::vector<PartInfo> parts;
  for (int number : {1, 3, 2}) {
    const std::string bytes(number == 3 ? 10 : 1000, static_cast<char>('0' + number));
    parts.push_back(*UploadPart(*store_, "a/k", id, number, AsBytes(bytes)));
  }
  std::ranges::sort(parts, {}, &PartInfo::number);
  struct stat before, after;
  ASSERT_EQ(stat((UploadFolder(root_) / "whole").c_str(), &before), 0);
  EXPECT_FALSE(CompleteMultipart(*store_, "a/k", id, parts, {.if_match = "another"}));
  ASSERT_TRUE(CompleteMultipart(*store_, "a/k", id, parts)) << "an upload outlives a completion that was refused";
  ASSERT_EQ(stat((root_ / "a/k").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "the file that the parts came into is the object";
  EXPECT_EQ(*ReadFile(root_ / "a/k"), std::string(1000, '1') + std::string(1000, '2') + std::string(10, '3'));
  EXPECT_EQ(UploadFolder(root_), "");
}

TEST_F(FileStoreTest, PartsGoWithACompletionThatWasCutOff) {
  auto id = *CreateMultipart(*store_, "k");
  auto lost = *UploadPart(*store_, "k", id, 1, AsBytes("lost"));
  auto larger = *UploadPart(*store_, "k", id, 2, AsBytes("larger"));
  fs::remove(UploadFolder(root_) / "whole");
  EXPECT_THAT(*ListParts(*store_, "k", id), ElementsAre(testing::Field(&PartInfo::number, 2)));
  auto refused = CompleteMultipart(*store_, "k", id, {lost, larger});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  auto again = *UploadPart(*store_, "k", id, 1, AsBytes("sent"));
  ASSERT_TRUE(CompleteMultipart(*store_, "k", id, {again, larger}));
  EXPECT_EQ(*ReadFile(root_ / "k"), "sentlarger");
}

TEST_F(FileStoreTest, AnObjectHasMorePartsThanAProcessFiles) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{100, before.rlim_max};
  for (const bool in_place : {true, false}) {
    auto id = *CreateMultipart(*store_, "k");
    std::string content;
    std::vector<PartInfo> parts;
    for (int number = 1; number <= 300; ++number) {
      const std::string bytes(in_place ? 3 : 1 + number % 5, static_cast<char>('a' + number % 26));
      parts.push_back(*UploadPart(*store_, "k", id, number, AsBytes(bytes)));
      content += bytes;
    }
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    auto done = CompleteMultipart(*store_, "k", id, parts);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_TRUE(done) << done.error().ToString();
    EXPECT_EQ(*ReadFile(root_ / "k"), content);
  }
}

TEST_F(FileStoreTest, NoPartComesIntoAnObject) {
  auto id = *CreateMultipart(*store_, "k");
  auto part = *UploadPart(*store_, "k", id, 1, AsBytes("one"));
  ASSERT_TRUE(CompleteMultipart(*store_, "k", id, {part}));
  auto late = UploadPart(*store_, "k", id, 2, AsBytes("two"));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kNotFound);
  EXPECT_EQ(*ReadFile(root_ / "k"), "one");
}

// Parts of any sizes, again and with gaps, of which some are wanted: the object is those, one after the other.
TEST_F(FileStoreTest, AnyPartsMakeTheObjectTheySay) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    auto id = *CreateMultipart(*store_, "k");
    std::map<int, std::pair<PartInfo, std::string>> model;
    const std::uint64_t usual = 1 + random.Below(8);
    for (std::uint64_t i = 1 + random.Below(8); i > 0; --i) {
      const int number = 1 + static_cast<int>(random.Below(6));
      std::string bytes(random.Below(3) > 0 ? usual : random.Below(10), '\0');
      for (char& c : bytes) c = static_cast<char>('a' + random.Below(26));
      model[number] = {*UploadPart(*store_, "k", id, number, AsBytes(bytes)), bytes};
    }
    auto listed = *ListParts(*store_, "k", id);
    ASSERT_EQ(listed.size(), model.size()) << seed;
    for (const PartInfo& part : listed) {
      EXPECT_EQ(part.etag, model.at(part.number).first.etag) << seed;
      EXPECT_EQ(part.size, model.at(part.number).second.size()) << seed;
    }
    std::vector<PartInfo> wanted;
    std::string content;
    const bool all = random.Below(2) == 0;
    for (const auto& [number, part] : model) {
      if (!all && random.Below(3) == 0) continue;
      wanted.push_back(part.first);
      content += part.second;
    }
    if (wanted.empty()) {
      ASSERT_TRUE(AbortMultipart(*store_, "k", id)) << seed;
      continue;
    }
    if (random.Below(2) == 0) {
      EXPECT_FALSE(CompleteMultipart(*store_, "k", id, wanted, {.if_match = "another"})) << seed;
    }
    ASSERT_TRUE(CompleteMultipart(*store_, "k", id, wanted)) << seed;
    EXPECT_EQ(*ReadFile(root_ / "k"), content) << seed;
  }
  EXPECT_EQ(UploadFolder(root_), "");
}

TEST_F(FileStoreTest, WalkerReportsWhatItPassesOver) {
  WriteByHand(root_ / "good", "x");
  WriteByHand(root_ / "bad\xff", "x");
  RootFolder root = *RootFolder::Open(root_, false);
  std::vector<std::string> passed_over;
  TreeWalker walker(root, {.on_problem = [&](const std::string& path, const Error&) { passed_over.push_back(path); }});
  std::vector<std::string> keys;
  for (auto file = walker.Peek(); file && *file; file = walker.Peek()) {
    keys.push_back((*file)->key);
    walker.Advance();
  }
  EXPECT_THAT(keys, ElementsAre("good"));
  EXPECT_THAT(passed_over, ElementsAre("bad\xff"));
}

TEST_F(FileStoreTest, WalkerNamesWhatIsNeitherAFileNorAFolder) {
  WriteByHand(root_ / "d/file", "x");
  ASSERT_EQ(mkfifo((root_ / "d/fifo").c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((root_ / "e").c_str(), 0600), 0);
  fs::create_symlink("nowhere", root_ / "d/dangling");
  fs::create_symlink("fifo", root_ / "d/to-fifo");
  fs::create_symlink("loop", root_ / "d/loop");
  fs::create_symlink(".", root_ / "d/self");
  RootFolder root = *RootFolder::Open(root_, false);
  using Links = TreeWalker::Links;
  for (const auto& [links, expected] :
       {std::pair(Links::kFollow, std::vector<std::string>{"d/dangling", "d/fifo", "d/loop", "d/to-fifo"}),
        std::pair(Links::kList, std::vector<std::string>{"d/fifo"})}) {
    std::vector<std::string> named, keys;
    TreeWalker walker(root,
                      {.prefix = "d/", .links = links, .on_problem = [&](const std::string& path, const Error& error) {
                         named.push_back(path);
                         EXPECT_EQ(error.code() == Code::kUnsupported, path != "d/loop") << error.ToString();
                       }});
    for (auto file = walker.Peek(); file && *file; file = walker.Peek()) {
      keys.push_back((*file)->key);
      walker.Advance();
    }
    EXPECT_EQ(named, expected);
    EXPECT_EQ(keys.size(), links == Links::kFollow ? 1u : 5u);
  }
}

TEST_F(FileStoreTest, SpecialFilesAreNoObjects) {
  ASSERT_EQ(mkfifo((root_ / "fifo").c_str(), 0600), 0);
  WriteByHand(root_ / "private", "old");
  fs::permissions(root_ / "private", fs::perms::owner_read | fs::perms::owner_write);
  const auto put = Put(*store_, "fifo", AsBytes("x"));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(Delete(*store_, "fifo"));
  EXPECT_TRUE(fs::is_fifo(root_ / "fifo"));
  ASSERT_TRUE(Put(*store_, "private", AsBytes("new")));
  EXPECT_EQ(fs::status(root_ / "private").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(FilePaths, SegmentsAndNamesAreOneToOne) {
  for (std::string segment : {"a", "", ".", "..", "...", ".hidden", ".millrace~", ".millrace~=", ".millrace~tmp-1"}) {
    std::string name = NameOfSegment(segment);
    EXPECT_FALSE(name.empty() || name == "." || name == "..");
    EXPECT_EQ(SegmentOfName(name), segment);
  }
  EXPECT_EQ(SegmentOfName(".millrace~tmp-0123"), std::nullopt);
  EXPECT_EQ(SegmentOfName(".millrace~upload-0123"), std::nullopt);
}

}  // namespace
}  // namespace millrace::object
