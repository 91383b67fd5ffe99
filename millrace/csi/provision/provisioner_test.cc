#include "millrace/csi/provision/provisioner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "millrace/base/files/files.h"
#include "millrace/csi/volume/s3_policy.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/s3d/server.h"

namespace millrace::csi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A provisioner over an endpoint with the bucket "vols".
class ProvisionerTest : public testing::Test {
 protected:
  void SetUp() override {
    Serve("");
    ASSERT_TRUE(server_->CreateBucket("vols"));
    Connect();
  }
  /// Starts the endpoint; with a policy, nothing else is allowed.
  void Serve(const std::string& policy, Clock* clock = nullptr) {
    server_.reset();
    auto server = s3d::Server::Start(
        {.root = folder_.path() / "buckets", .anonymous = true, .policy = policy, .sync = false, .clock = clock});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }
  void Connect() {
    object::ConnectOptions options;
    options.endpoint_url = server_->endpoint();
    options.region = "us-east-1";
    options.no_sign_request = true;
    connection_ = *object::OpenConnection(options);
    provisioner_ = CreateRoot("csi.millrace.dev");
    vols_ = object::Locate(*connection_, "s3://vols")->store;
  }
  std::unique_ptr<Provisioner> CreateRoot(const std::string& driver) {
    return *Provisioner::Create({.driver = driver,
                                 .default_place = "s3://vols/team",
                                 .connect = [this](const Secrets&) { return connection_; },
                                 .clock = &clock_});
  }
  Result<VolumeRecord> Create(const std::string& name, std::int64_t bytes = 0,
                              std::map<std::string, std::string> parameters = {}) {
    return provisioner_->CreateVolume({.name = name, .required_bytes = bytes, .parameters = std::move(parameters)}, {});
  }
  VolumeRecord Must(Result<VolumeRecord> mark) {
    EXPECT_TRUE(mark) << mark.error().ToString();
    return mark.value_or(VolumeRecord{});
  }
  void Put(const std::string& key, const std::string& content) {
    ASSERT_TRUE(object::Put(*vols_, key, AsBytes(content)));
  }
  std::string Content(const std::string& key) {
    const auto read = object::GetAll(*vols_, key, kMiB);
    return read && *read ? (*read)->bytes : "it cannot be read";
  }
  std::vector<std::string> Keys(const std::string& prefix = "") {
    std::vector<std::string> keys;
    EXPECT_TRUE(object::ListAll(*vols_, {.prefix = prefix}, [&](const object::ListPage& page) {
      for (const auto& info : page.objects) keys.push_back(info.key);
      return true;
    }));
    return keys;
  }

  TempDir folder_ = *TempDir::Create();
  FakeClock clock_;
  std::unique_ptr<s3d::Server> server_;
  std::shared_ptr<object::Connection> connection_;
  std::unique_ptr<Provisioner> provisioner_;
  std::shared_ptr<object::Store> vols_;
};

TEST_F(ProvisionerTest, MakesAVolumeOnce) {
  const VolumeRecord first = Must(Create("pvc-1", 100));
  EXPECT_EQ(first.id, "s3://vols/team/volumes/pvc-1");
  EXPECT_EQ(Must(Create("pvc-1", 100)).created_unix_seconds, first.created_unix_seconds);
  EXPECT_EQ(Must(Create("pvc-1", 50)).capacity_bytes, 100);
  auto larger = Create("pvc-1", 200);
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code(), Code::kAlreadyExists);
  auto other = Create("pvc-1", 100, {{"onDelete", "retain"}});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), Code::kAlreadyExists);
  EXPECT_THAT(Keys(), ElementsAre("team/volumes/pvc-1/volume.json"));
}

TEST_F(ProvisionerTest, NeedsNoOtherRightsThanItsPolicy) {
  const Json policy = *MakeS3Policy({.use = PolicyUse::kProvisioner, .bucket = "vols", .prefix = "team/"});
  vols_.reset();
  connection_.reset();
  Serve(policy.dump());
  Connect();
  const VolumeRecord first = Must(Create("pvc-1", 100));
  Put("team/volumes/pvc-1/data/a", "a");
  Must(Create("pvc-1", 100));
  const VolumeRecord snapshot = Must(provisioner_->CreateSnapshot({.name = "snap-1", .volume_id = first.id}, {}));
  Must(provisioner_->CreateVolume(
      {.name = "pvc-2", .required_bytes = 100, .source = first.id, .source_kind = RootKind::kVolume}, {}));
  Must(provisioner_->ExpandVolume(first.id, 200, 0, {}, {}));
  EXPECT_TRUE(provisioner_->DeleteSnapshot(snapshot.id, {}, {}));
  EXPECT_TRUE(provisioner_->DeleteVolume(first.id, {}, {}));
  std::set<std::string> granted;
  for (const Json& statement : policy["Statement"]) {
    for (const Json& action : statement["Action"]) granted.insert(action.get<std::string>());
  }
  // Needed only for uploads that were cut off.
  granted.erase("s3:AbortMultipartUpload");
  granted.erase("s3:ListMultipartUploadParts");
  EXPECT_EQ(server_->used_actions(), granted);
  EXPECT_FALSE(object::Put(*vols_, "other/a", {}));
}

TEST_F(ProvisionerTest, DeletesWhatTheVolumeOwnsAndNothingElse) {
  const VolumeRecord mark = Must(Create("pvc-1"));
  Put("team/volumes/pvc-1/data/a", "a");
  Put("team/volumes/pvc-1/data/deep/b", "b");
  Put("team/volumes/pvc-10/data/c", "c");
  Put("team/other", "d");
  ASSERT_TRUE(provisioner_->DeleteVolume(mark.id, {}, {}));
  EXPECT_THAT(Keys(), ElementsAre("team/other", "team/volumes/pvc-10/data/c"));
  EXPECT_TRUE(provisioner_->DeleteVolume(mark.id, {}, {})) << "a second time";
}

TEST_F(ProvisionerTest, DeletesNothingWithoutItsMark) {
  Put("team/volumes/foreign/data/a", "a");
  EXPECT_TRUE(provisioner_->DeleteVolume("s3://vols/team/volumes/foreign", {}, {}));
  for (const char* id : {"s3://vols", "s3://vols/team", "any-handle", "s3://vols/team/volumes/../x", "s3:///", ""}) {
    (void)provisioner_->DeleteVolume(id, {}, {});
  }
  EXPECT_THAT(Keys(), ElementsAre("team/volumes/foreign/data/a"));
}

TEST_F(ProvisionerTest, LeavesVolumesOfOtherDriversAlone) {
  const VolumeRecord mark = Must(Create("pvc-1"));
  Put("team/volumes/pvc-1/data/a", "a");
  auto other = CreateRoot("csi.example.org");
  Status deleted = other->DeleteVolume(mark.id, {}, {});
  ASSERT_FALSE(deleted);
  EXPECT_EQ(deleted.error().code(), Code::kPreconditionFailed);
  EXPECT_THAT(Keys("team/volumes/pvc-1/data"), ElementsAre("team/volumes/pvc-1/data/a"));
}

TEST_F(ProvisionerTest, TakesNoFolderWithContent) {
  Put("team/volumes/pvc-1/data/old", "of somebody");
  auto made = Create("pvc-1");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kAlreadyExists);
  EXPECT_THAT(made.error().ToString(), HasSubstr("content that no volume owns"));
}

TEST_F(ProvisionerTest, RetainsContentWhenTheClassSaysSo) {
  const VolumeRecord mark = Must(Create("pvc-1", 0, {{"onDelete", "retain"}}));
  Put("team/volumes/pvc-1/data/a", "a");
  ASSERT_TRUE(provisioner_->DeleteVolume(mark.id, {}, {}));
  EXPECT_THAT(Keys(), ElementsAre("team/volumes/pvc-1/data/a"));
}

TEST_F(ProvisionerTest, GivesAVolumeABucketOfItsOwn) {
  const VolumeRecord mark = Must(Create("pvc-1", 0, {{"bucketPerVolume", "true"}, {"bucketNamePrefix", "t-"}}));
  EXPECT_EQ(mark.id, "s3://t-pvc-1");
  auto bucket = object::Locate(*connection_, "s3://t-pvc-1")->store;
  ASSERT_TRUE(object::Put(*bucket, "data/a", AsBytes(std::string("a"))));
  ASSERT_TRUE(provisioner_->DeleteVolume(mark.id, {}, {}));
  EXPECT_FALSE(object::List(*bucket, {})) << "the bucket is gone";
}

TEST_F(ProvisionerTest, KeepsABucketWithForeignContent) {
  const VolumeRecord mark = Must(Create("pvc-1", 0, {{"bucketPerVolume", "true"}}));
  auto bucket = object::Locate(*connection_, "s3://millrace-pvc-1")->store;
  ASSERT_TRUE(object::Put(*bucket, "data/a", AsBytes(std::string("a"))));
  ASSERT_TRUE(object::Put(*bucket, "of-somebody", AsBytes(std::string("b"))));
  EXPECT_TRUE(provisioner_->DeleteVolume(mark.id, {}, {}));
  auto left = object::List(*bucket, {});
  ASSERT_TRUE(left);
  ASSERT_EQ(left->objects.size(), 1);
  EXPECT_EQ(left->objects[0].key, "of-somebody");
}

TEST_F(ProvisionerTest, ClonesAndRestores) {
  const VolumeRecord source = Must(Create("pvc-1"));
  Put("team/volumes/pvc-1/data/a", "one");
  const VolumeRecord snapshot = Must(provisioner_->CreateSnapshot({.name = "snap-1", .volume_id = source.id}, {}));
  EXPECT_EQ(snapshot.id, "s3://vols/team/snapshots/snap-1");
  EXPECT_EQ(snapshot.capacity_bytes, 3);
  Put("team/volumes/pvc-1/data/a", "changed");
  const VolumeRecord restored = Must(
      provisioner_->CreateVolume({.name = "pvc-2", .source = snapshot.id, .source_kind = RootKind::kSnapshot}, {}));
  EXPECT_EQ(restored.state, VolumeState::kReady);
  EXPECT_EQ(object::GetAll(*vols_, "team/volumes/pvc-2/data/a", 100)->value().bytes, "one");
  Must(provisioner_->CreateVolume({.name = "pvc-3", .source = source.id}, {}));
  EXPECT_EQ(object::GetAll(*vols_, "team/volumes/pvc-3/data/a", 100)->value().bytes, "changed");
  auto missing = provisioner_->CreateVolume({.name = "pvc-4", .source = "s3://vols/team/volumes/none"}, {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
}

TEST_F(ProvisionerTest, FinishesACopyThatWasCutOff) {
  const VolumeRecord source = Must(Create("pvc-1"));
  for (int i = 0; i < 20; ++i) Put(fmt::format("team/volumes/pvc-1/data/{}", i), "content");
  ASSERT_TRUE(server_->SetFaults("error=403,op=CopyObject,skip=5"));
  auto cut =
      provisioner_->CreateVolume({.name = "pvc-2", .source = source.id},
                                 {.stop = {}, .deadline = Deadline::After(SystemClock(), std::chrono::seconds(1))});
  ASSERT_FALSE(cut);
  ASSERT_TRUE(server_->SetFaults(""));
  Must(provisioner_->CreateVolume({.name = "pvc-2", .source = source.id}, {}));
  EXPECT_EQ(Keys("team/volumes/pvc-2/data/").size(), 20);
}

TEST_F(ProvisionerTest, CopiesAgainWhatWasRewrittenWithinASecond) {
  vols_.reset();
  connection_.reset();
  Serve("", &clock_);  // all in one second
  Connect();
  const VolumeRecord source = Must(Create("pvc-1"));
  for (const char* name : {"a", "b", "c"}) Put(fmt::format("team/volumes/pvc-1/data/{}", name), "one");
  ASSERT_TRUE(server_->SetFaults("error=403,op=CopyObject,skip=2"));
  ASSERT_FALSE(provisioner_->CreateSnapshot({.name = "snap-1", .volume_id = source.id}, {}));
  ASSERT_TRUE(server_->SetFaults(""));
  const auto copied = Keys("team/snapshots/snap-1/data/");
  ASSERT_EQ(copied.size(), 2);
  const std::string name = copied[0].substr(copied[0].rfind('/') + 1);
  Put("team/volumes/pvc-1/data/" + name, "two");
  Must(provisioner_->CreateSnapshot({.name = "snap-1", .volume_id = source.id}, {}));
  EXPECT_EQ(Content(copied[0]), "two");
}

TEST_F(ProvisionerTest, ReadsTheMarksOfAPageOnly) {
  const VolumeRecord source = Must(Create("pvc-1")), other = Must(Create("pvc-2"));
  for (int i = 10; i < 30; ++i) {
    const std::string& volume = i % 2 == 0 ? source.id : other.id;
    Must(provisioner_->CreateSnapshot({.name = fmt::format("snap-{}", i), .volume_id = volume}, {}));
  }
  std::vector<std::string> names;
  std::string token;
  do {
    // A page of 2 reads the marks of 3 snapshots, and of those of the other volume between them.
    ASSERT_TRUE(server_->SetFaults("error=403,op=GetObject,skip=6"));
    auto page = provisioner_->ListSnapshots(source.id, token, 2, {}, {});
    ASSERT_TRUE(page) << page.error().ToString();
    for (const VolumeRecord& mark : page->marks) names.push_back(mark.name);
    token = page->next;
  } while (!token.empty());
  ASSERT_EQ(names.size(), 10);
  EXPECT_EQ(names.front(), "snap-10");
  EXPECT_EQ(names.back(), "snap-28");
}

TEST_F(ProvisionerTest, ListsInPages) {
  for (const char* name : {"a", "b", "c"}) Must(Create(name));
  Put("team/volumes/no-mark/data/x", "x");
  auto first = provisioner_->ListVolumes("", 2, {});
  ASSERT_TRUE(first) << first.error().ToString();
  ASSERT_EQ(first->marks.size(), 2);
  auto second = provisioner_->ListVolumes(first->next, 2, {});
  ASSERT_TRUE(second);
  ASSERT_EQ(second->marks.size(), 1);
  EXPECT_EQ(second->marks[0].name, "c");
  EXPECT_TRUE(second->next.empty());
  EXPECT_FALSE(provisioner_->ListVolumes("nonsense", 2, {}));
}

TEST_F(ProvisionerTest, CountsTheCapacityOfAClass) {
  const std::map<std::string, std::string> limited = {{"capacity", "1Ki"}};
  Must(Create("a", 1000, limited));
  EXPECT_EQ(*provisioner_->AvailableCapacity(limited, {}), 24);
  auto beyond = Create("b", 100, limited);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code(), Code::kNoSpace);
  Must(Create("a", 1000, limited));
}

TEST_F(ProvisionerTest, ExpandsButNeverShrinks) {
  const VolumeRecord mark = Must(Create("a", 100));
  EXPECT_EQ(Must(provisioner_->ExpandVolume(mark.id, 300, 0, {}, {})).capacity_bytes, 300);
  EXPECT_EQ(Must(provisioner_->ExpandVolume(mark.id, 200, 0, {}, {})).capacity_bytes, 300);
  EXPECT_FALSE(provisioner_->ExpandVolume("s3://vols/team/volumes/none", 1, 0, {}, {}));
}

TEST_F(ProvisionerTest, NamesAreKeptOrHashed) {
  EXPECT_EQ(Must(Create("a name/with ../signs")).id.find("s3://vols/team/volumes/v-"), 0);
  EXPECT_LE(Must(Create(std::string(128, 'a'))).id.size(), kMaxIdBytes);
  EXPECT_FALSE(Create("x", 0, {{"bucketNam", "y"}}));
}

}  // namespace
}  // namespace millrace::csi
