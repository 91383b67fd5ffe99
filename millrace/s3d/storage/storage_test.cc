#include "millrace/s3d/storage/storage.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"

namespace millrace::s3d {
namespace {

namespace fs = std::filesystem;

/// What the storage must say: per bucket, key → content.
using Model = std::map<std::string, std::map<std::string, std::string>>;

class StorageTest : public testing::Test {
 protected:
  StorageTest() : folder_(*TempDir::Create()) { Open(); }
  fs::path root() const { return folder_.path() / "root"; }

  void Open() {
    storage_.reset();
    auto opened = Storage::Open(root(), false, clock_);
    ASSERT_TRUE(opened) << opened.error().ToString();
    storage_ = std::move(*opened);
  }

  Object MakeObject(std::string_view content) {
    BlobWriter writer(storage_->blobs());
    EXPECT_TRUE(writer.Append(AsBytes(content)));
    Object object;
    object.size = content.size();
    object.extents = *writer.Finish();
    object.etag = HexEncode(Md5(AsBytes(content)));
    object.modified = storage_->Now();
    object.attributes = {{"content-type", "text/plain"}};
    return object;
  }
  bool Put(std::string_view bucket, std::string_view key, std::string_view content, WriteCondition condition = {}) {
    return storage_->Put(bucket, key, MakeObject(content), condition).has_value();
  }
  void Delete(std::string_view bucket, std::string key) { EXPECT_TRUE(storage_->Delete(bucket, {&key, 1}, {})); }

  static std::string ContentOf(const Object& object) {
    std::string content;
    for (const Extent& extent : object.extents) {
      std::string piece(extent.length, '\0');
      auto fd = extent.blob->Open();
      EXPECT_TRUE(fd) << fd.error().ToString();
      EXPECT_TRUE(ReadExactly((*fd)->get(), AsWritableBytes(piece), extent.offset, "blob"));
      content += piece;
    }
    return content;
  }
  static Model StateOf(const Storage& storage) {
    Model state;
    for (const auto& [bucket, created] : storage.ListBuckets()) {
      auto& objects = state[bucket];
      auto listing = storage.List(bucket, {.max_keys = 1'000'000});
      EXPECT_TRUE(listing);
      for (const auto& [key, object] : listing->entries) objects[key] = ContentOf(*object);
    }
    return state;
  }
  std::size_t BlobFiles() const {
    return std::distance(fs::directory_iterator(root() / "blobs"), fs::directory_iterator());
  }

  TempDir folder_;
  FakeClock clock_;
  std::unique_ptr<Storage> storage_;
};

/// A random key out of few, with bytes that file systems and listings find hard.
std::string RandomKey(Random& random) {
  static const std::string kPieces[] = {"a", "b", "/", "..", "\xff", "\xc3\xa9", " ", "%2F", "//", "\n"};
  std::string key;
  for (std::uint64_t i = 0, pieces = 1 + random.Below(3); i < pieces; ++i)
    key += kPieces[random.Below(std::size(kPieces))];
  return key;
}

std::string RandomContent(Random& random) {
  std::uint64_t size = random.Below(10) == 0 ? 60'000 + random.Below(200'000) : random.Below(2000);
  std::string content(size, '\0');
  for (char& c : content) c = static_cast<char>(random.Next());
  return content;
}

/// One random change, made to the storage and to the model.
void Step(Random& random, Storage& storage, const std::function<Object(std::string_view)>& make, Model& model) {
  std::string bucket = random.Below(4) == 0 ? "other" : "bucket";
  std::string key = RandomKey(random);
  switch (random.Below(8)) {
    case 0: {
      bool made = storage.CreateBucket(bucket).has_value();
      EXPECT_EQ(made, !model.contains(bucket));
      model[bucket];
      break;
    }
    case 1: {
      bool gone = storage.DeleteBucket(bucket).has_value();
      EXPECT_EQ(gone, model.contains(bucket) && model[bucket].empty());
      if (gone) model.erase(bucket);
      break;
    }
    case 2:
    case 3: {
      bool done = storage.Delete(bucket, {&key, 1}, {}).has_value();
      EXPECT_EQ(done, model.contains(bucket));
      if (done) model[bucket].erase(key);
      break;
    }
    case 4: {  // copy
      std::string source = RandomKey(random);
      auto object = storage.Get(bucket, source);
      EXPECT_EQ(object.has_value(), model.contains(bucket) && model[bucket].contains(source));
      if (object && storage.Put(bucket, key, **object, {})) model[bucket][key] = model[bucket][source];
      break;
    }
    case 5: {  // create only
      std::string content = RandomContent(random);
      bool done = storage.Put(bucket, key, make(content), {.if_none_match = true}).has_value();
      EXPECT_EQ(done, model.contains(bucket) && !model[bucket].contains(key));
      if (done) model[bucket][key] = content;
      break;
    }
    default: {
      std::string content = RandomContent(random);
      if (storage.Put(bucket, key, make(content), {})) model[bucket][key] = content;
    }
  }
}

TEST_F(StorageTest, AgreesWithAModelAlsoAfterReopening) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    Model model = StateOf(*storage_);
    for (int round = 0; round < 6; ++round) {
      for (int i = 0; i < 60; ++i) {
        Step(random, *storage_, [&](std::string_view content) { return MakeObject(content); }, model);
      }
      ASSERT_EQ(StateOf(*storage_), model);
      Open();
      ASSERT_EQ(StateOf(*storage_), model);
    }
  }
}

TEST_F(StorageTest, AnyCutOfTheJournalLeavesAStateThatWas) {
  storage_->blobs().KeepAll();  // so that the files of every earlier state stay
  Random random(11);
  Model model;
  std::vector<std::pair<std::uint64_t, Model>> states;  // the journal's size, and what it then said
  auto note = [&] { states.emplace_back(fs::file_size(root() / "journal"), model); };
  note();
  for (int i = 0; i < 60; ++i) {
    Step(random, *storage_, [&](std::string_view content) { return MakeObject(content); }, model);
    note();
  }
  storage_.reset();
  std::uint64_t end = states.back().first;
  for (int trial = 0; trial < 40; ++trial) {
    std::uint64_t cut = states.front().first + random.Below(end - states.front().first + 1);
    fs::path copy = folder_.path() / fmt::format("cut{}", trial);
    fs::copy(root(), copy, fs::copy_options::recursive);
    fs::resize_file(copy / "journal", cut);
    auto reopened = Storage::Open(copy, false, clock_);
    const Model* expected = nullptr;
    for (const auto& [size, state] : states) {
      if (size <= cut) expected = &state;
    }
    ASSERT_TRUE(reopened) << reopened.error().ToString();
    EXPECT_EQ(StateOf(**reopened), *expected);
    fs::remove_all(copy);
  }
}

TEST_F(StorageTest, DamageInTheMiddleIsNotTakenForATornTail) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  for (int i = 0; i < 20; ++i) Put("bucket", fmt::format("k{}", i), "x");
  storage_.reset();
  auto journal = ReadFile(root() / "journal");
  (*journal)[100] ^= 1;
  ASSERT_TRUE(WriteFileAtomic(root() / "journal", AsBytes(*journal)));
  auto reopened = Storage::Open(root(), false, clock_);
  ASSERT_FALSE(reopened);
  EXPECT_EQ(reopened.error().code(), Code::kCorrupt);
}

TEST_F(StorageTest, ZerosBehindTheEndAreATornTail) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  storage_.reset();
  fs::resize_file(root() / "journal", fs::file_size(root() / "journal") + 4096);
  Open();
  EXPECT_EQ(StateOf(*storage_), (Model{{"bucket", {}}}));
}

TEST_F(StorageTest, FilesGoWithTheLastObjectThatNamesThem) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  const std::string large(100'000, 'x');
  Put("bucket", "a", large);
  auto reader = *storage_->Get("bucket", "a");
  ASSERT_TRUE(storage_->Put("bucket", "copy", *reader, {}));
  EXPECT_EQ(BlobFiles(), 1u);
  Delete("bucket", "a");
  Delete("bucket", "copy");
  EXPECT_EQ(BlobFiles(), 1u);
  EXPECT_EQ(ContentOf(*reader), large);
  reader.reset();
  EXPECT_EQ(BlobFiles(), 0u);
}

TEST_F(StorageTest, OpeningRemovesWhatAWriterLeftBehind) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  Put("bucket", "a", std::string(100'000, 'x'));
  Object unfinished = MakeObject(std::string(100'000, 'y'));
  EXPECT_EQ(BlobFiles(), 2u);
  storage_->blobs().KeepAll();
  unfinished = {};
  Open();
  EXPECT_EQ(BlobFiles(), 1u);
  EXPECT_EQ(StateOf(*storage_)["bucket"].size(), 1u);
}

TEST_F(StorageTest, OpeningTidiesPacksThatAreMostlyDead) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  const std::string body(10'000, 'x');
  for (int i = 0; i < 100; ++i) Put("bucket", fmt::format("k{}", i), body);
  for (int i = 0; i < 98; ++i) Delete("bucket", fmt::format("k{}", i));
  auto stored = [&] {
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(root() / "blobs")) bytes += entry.file_size();
    return bytes;
  };
  EXPECT_EQ(stored(), 100 * body.size());
  Model before = StateOf(*storage_);
  Open();
  EXPECT_EQ(stored(), 2 * body.size());
  EXPECT_EQ(StateOf(*storage_), before);
  Open();
  EXPECT_EQ(StateOf(*storage_), before);
}

TEST_F(StorageTest, AMissingFileIsTold) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  Put("bucket", "a", std::string(100'000, 'x'));
  storage_.reset();
  for (const auto& entry : fs::directory_iterator(root() / "blobs")) fs::remove(entry.path());
  auto reopened = Storage::Open(root(), false, clock_);
  ASSERT_FALSE(reopened);
  EXPECT_EQ(reopened.error().code(), Code::kCorrupt);
}

TEST_F(StorageTest, ARecordThatNoReaderWouldTakeIsNotWritten) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  Put("bucket", "before", "x");
  Object large = MakeObject("y");
  large.attributes.emplace_back("x-amz-meta-note", std::string(Journal::kMaxRecordBytes, 'n'));
  auto refused = storage_->Put("bucket", "large", large, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "InvalidRequest");
  EXPECT_FALSE(storage_->Get("bucket", "large"));
  large.attributes.back().second.resize(Journal::kMaxRecordBytes - 1000);
  EXPECT_TRUE(storage_->Put("bucket", "fits", large, {}));
  Put("bucket", "after", "z");
  large = {};  // objects do not outlive the storage
  Open();
  EXPECT_EQ(StateOf(*storage_), (Model{{"bucket", {{"after", "z"}, {"before", "x"}, {"fits", "y"}}}}));
}

TEST_F(StorageTest, NobodyElseCanReadTheFolder) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  Put("bucket", "small", "x");
  Put("bucket", "large", std::string(100'000, 'x'));
  auto open_to_others = [&] {
    std::vector<std::string> names;
    const auto any = fs::perms::group_all | fs::perms::others_all;
    if ((fs::status(root()).permissions() & any) != fs::perms::none) names.push_back("the root");
    for (const auto& entry : fs::recursive_directory_iterator(root())) {
      if ((entry.status().permissions() & any) != fs::perms::none) names.push_back(entry.path());
    }
    return names;
  };
  EXPECT_EQ(open_to_others(), std::vector<std::string>());
  // As releases before left it: the root's mode is the user's choice, the rest was made by us.
  storage_.reset();
  fs::remove(root() / ManagedFolder::kMarkerName);
  for (const fs::path& path : {root(), root() / "blobs"}) fs::permissions(path, fs::perms(0755));
  fs::permissions(root() / "journal", fs::perms(0644));
  Open();
  EXPECT_EQ(open_to_others(), std::vector<std::string>{"the root"});
  EXPECT_EQ(StateOf(*storage_)["bucket"].size(), 2u);
}

TEST_F(StorageTest, AFolderOfSomebodyElseIsRefused) {
  const fs::path theirs = folder_.path() / "theirs";
  fs::create_directories(theirs / "blobs");
  ASSERT_TRUE(WriteFileAtomic(theirs / "blobs" / "0123456789abcdef", AsBytes("theirs")));
  auto refused = Storage::Open(theirs, false, clock_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().ToString().find("--root"), std::string::npos);
  EXPECT_EQ(*ReadFile(theirs / "blobs" / "0123456789abcdef"), "theirs");
  fs::create_directory_symlink(root(), folder_.path() / "link");
  EXPECT_EQ(Storage::Open(folder_.path() / "link", false, clock_).error().code(), Code::kPermissionDenied);
}

TEST_F(StorageTest, OneProcessPerRoot) {
  auto second = Storage::Open(root(), false, clock_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), Code::kBusy);
}

TEST_F(StorageTest, ConditionsOfWrites) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  EXPECT_FALSE(Put("bucket", "k", "1", {.if_match = "*"}));
  EXPECT_TRUE(Put("bucket", "k", "1", {.if_none_match = true}));
  EXPECT_FALSE(Put("bucket", "k", "2", {.if_none_match = true}));
  std::string etag = (*storage_->Get("bucket", "k"))->etag;
  EXPECT_TRUE(Put("bucket", "k", "2", {.if_match = etag}));
  EXPECT_FALSE(Put("bucket", "k", "3", {.if_match = etag}));
  EXPECT_EQ(StateOf(*storage_)["bucket"]["k"], "2");
}

/// A listing by the definition: every key, one after the other.
std::vector<std::string> NaiveList(const std::set<std::string>& keys, const ListQuery& query) {
  std::set<std::string> names;
  for (const std::string& key : keys) {
    if (!key.starts_with(query.prefix)) continue;
    std::size_t cut = query.delimiter.empty() ? std::string::npos : key.find(query.delimiter, query.prefix.size());
    std::string name = cut == std::string::npos ? key : key.substr(0, cut + query.delimiter.size());
    if (name > query.after) names.insert(name);
  }
  return {names.begin(), names.end()};
}

TEST_F(StorageTest, ListsLikeTheDefinition) {
  Random random(5);
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  std::set<std::string> keys;
  Object empty = MakeObject("");
  for (int i = 0; i < 300; ++i) keys.insert(RandomKey(random) + RandomKey(random));
  for (const std::string& key : keys) ASSERT_TRUE(storage_->Put("bucket", key, empty, {}));
  const std::string delimiters[] = {"", "/", "a", ".."};
  for (int trial = 0; trial < 200; ++trial) {
    ListQuery query{.prefix = random.Below(2) ? "" : RandomKey(random),
                    .delimiter = delimiters[random.Below(4)],
                    .after = random.Below(2) ? "" : RandomKey(random)};
    std::vector<std::string> expected = NaiveList(keys, query), listed;
    query.max_keys = static_cast<int>(1 + random.Below(20));
    for (;;) {
      auto page = storage_->List("bucket", query);
      ASSERT_TRUE(page);
      for (const auto& [name, object] : page->entries) listed.push_back(name);
      if (!page->truncated) break;
      ASSERT_EQ(page->entries.size(), static_cast<std::size_t>(query.max_keys));
      query.after = listed.back();
    }
    ASSERT_EQ(listed, expected) << "prefix " << query.prefix << " delimiter " << query.delimiter;
  }
}

TEST_F(StorageTest, UploadsSurviveReopeningAndCompleteOnce) {
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  auto id =
      storage_->CreateUpload("bucket", "k", {.initiated = storage_->Now(), .attributes = {{"x-amz-meta-a", "1"}}});
  ASSERT_TRUE(id);
  auto put_part = [&](int number, std::string_view content) {
    Object object = MakeObject(content);
    return storage_->PutPart(
        "bucket", "k", *id, number,
        {.size = object.size, .modified = object.modified, .etag = object.etag, .extents = object.extents});
  };
  ASSERT_TRUE(put_part(2, "world"));
  ASSERT_TRUE(put_part(1, "replaced"));
  ASSERT_TRUE(put_part(1, "hello "));
  Open();
  auto assemble = [](const Upload& upload) -> Reply<Object> {
    Object object;
    for (const auto& [number, part] : upload.parts) {
      object.size += part.size;
      object.extents.insert(object.extents.end(), part.extents.begin(), part.extents.end());
    }
    object.attributes = upload.attributes;
    return object;
  };
  auto done = storage_->CompleteUpload("bucket", "k", *id, {}, assemble);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(ContentOf(**done), "hello world");
  done->reset();  // readers go before their storage
  EXPECT_TRUE(storage_->CompleteUpload("bucket", "k", *id, {}, assemble)) << "a repeated completion yields the same";
  Open();
  EXPECT_TRUE(storage_->CompleteUpload("bucket", "k", *id, {}, assemble)) << "also after a restart";
  EXPECT_EQ(StateOf(*storage_)["bucket"]["k"], "hello world");
  EXPECT_TRUE(storage_->ListUploads("bucket", {})->entries.empty());
  Put("bucket", "k", "other");
  EXPECT_FALSE(storage_->CompleteUpload("bucket", "k", *id, {}, assemble));
}

TEST(BucketNames, AreChecked) {
  for (std::string_view good : {"abc", "a-b.c", "123"}) EXPECT_TRUE(IsValidBucketName(good)) << good;
  for (std::string_view bad : {"", "ab", "Abc", "a_b", "-ab", "ab-", "a..b", ".ab", "a/b"})
    EXPECT_FALSE(IsValidBucketName(bad)) << bad;
  EXPECT_FALSE(IsValidBucketName(std::string(64, 'a')));
}

TEST_F(StorageTest, AHundredThousandKeysAreListedPageByPage) {
  constexpr int kKeys = 100'000, kFolders = 500;
  ASSERT_TRUE(storage_->CreateBucket("bucket"));
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(storage_->Put("bucket", fmt::format("d{:03}/{:06}", i % kFolders, i), Object{.etag = "e"}, {}));
  }
  Open();  // from the journal
  int keys = 0, pages = 0;
  std::string after;
  for (bool more = true; more; ++pages) {
    auto page = storage_->List("bucket", {.after = after, .max_keys = 1000});
    ASSERT_TRUE(page);
    for (const auto& [key, object] : page->entries) {
      ASSERT_LT(after, key);
      after = key;
      ++keys;
    }
    more = page->truncated;
  }
  EXPECT_EQ(keys, kKeys);
  EXPECT_EQ(pages, kKeys / 1000);
  auto folders = storage_->List("bucket", {.delimiter = "/", .max_keys = 1000});
  ASSERT_TRUE(folders);
  EXPECT_EQ(folders->entries.size(), static_cast<std::size_t>(kFolders));
}

}  // namespace
}  // namespace millrace::s3d
