#include "millrace/object/hf/hub_store.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/hf/hub_test_base.h"

namespace millrace::object::hf::testing {
namespace {

using Fault = HubServer::Fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(HubTest, FilesOfBothKinds) {
  auto store = Open("o/m");
  for (const auto& [path, content] : files_) EXPECT_EQ(Content(*store, path), content) << path;
  auto small = Head(*store, "config.json"), large = Head(*store, "sub/model.safetensors");
  ASSERT_TRUE(small && *small && large && *large);
  EXPECT_EQ((*small)->etag, "9e26dfeeb6e641a33dae4961196235bdb965b21b");  // git hash-object
  EXPECT_EQ((*small)->checksum.algorithm, Checksum::Algorithm::kGitBlob);
  EXPECT_EQ(HexEncode(AsBytes((*small)->checksum.value)), (*small)->etag);
  EXPECT_EQ((*large)->checksum.algorithm, Checksum::Algorithm::kSha256);
  EXPECT_EQ((*large)->etag.size(), 64u);
  EXPECT_EQ((*large)->size, 50'000u);
  EXPECT_EQ(FormatIso8601((*large)->modified), "2026-01-31T12:00:00.000Z");
  for (const char* path : {"sub", "none", "sub/", "a//b", "../config.json"}) EXPECT_FALSE(*Head(*store, path)) << path;
}

TEST_F(HubTest, AStoreReadsOneCommit) {
  auto store = Open("o/m"), untouched = Open("o/m");
  EXPECT_EQ(Content(*store, "config.json"), "{}");
  server_->Commit("models/o/m", {{"config.json", "{\"new\": 1}"}, {"added", "x"}});
  EXPECT_EQ(Content(*store, "added"), "<absent>");
  EXPECT_EQ(Content(*store, "sub/a b.txt"), "text");
  EXPECT_EQ(Content(*untouched, "config.json"), "{\"new\": 1}") << "the commit is chosen at the first call";
}

TEST_F(HubTest, RevisionsAndDataSets) {
  const std::string first = server_->Commit("datasets/o/d", {{"x", "one"}});
  server_->Commit("datasets/o/d", {{"x", "two"}}, "refs/convert/parquet");
  server_->Commit("datasets/o/d", {{"x", "three"}});
  EXPECT_EQ(Content(*Open("datasets/o/d"), "x"), "three");
  EXPECT_EQ(Content(*Open("datasets/o/d@refs%2Fconvert%2Fparquet"), "x"), "two");
  EXPECT_EQ(Content(*Open("datasets/o/d@" + first), "x"), "one");
}

TEST_F(HubTest, AListingWhosePagesRepeatIsAnError) {
  Restart({.page_files = 2, .endless_trees = true});
  const auto page = List(*Open("o/m"), {});
  ASSERT_FALSE(page);
  EXPECT_EQ(page.error().code(), Code::kCorrupt);
  EXPECT_THAT(page.error().ToString(), HasSubstr("does not end"));
}

TEST_F(HubTest, ListingsComeByPagesAndAreKept) {
  Restart({.page_files = 2});
  auto store = Open("o/m");
  auto list = [&](ListRequest request) {
    std::vector<std::string> names;
    Status listed = ListAll(*store, std::move(request), [&](const ListPage& page) {
      for (const ObjectInfo& object : page.objects) names.push_back(object.key);
      names.insert(names.end(), page.common_prefixes.begin(), page.common_prefixes.end());
      return true;
    });
    if (!listed) names.push_back(listed.error().ToString());
    return names;
  };
  EXPECT_THAT(list({.delimiter = "/"}), ElementsAre("config.json", "sub/"));
  EXPECT_THAT(list({.prefix = "sub/mo"}), ElementsAre("sub/model.safetensors"));
  EXPECT_THAT(list({.prefix = "none/"}), ElementsAre());
  EXPECT_THAT(list({}), ElementsAre("config.json", "sub/a b.txt", "sub/model.safetensors"));
  const std::size_t requests = server_->seen().size();
  EXPECT_THAT(list({.prefix = "sub/", .max_keys = 1}), ElementsAre("sub/a b.txt", "sub/model.safetensors"));
  EXPECT_TRUE(*Head(*store, "sub/a b.txt"));
  EXPECT_FALSE(*Head(*store, "sub/other"));
  EXPECT_EQ(server_->seen().size(), requests) << "a commit does not change";
}

TEST_F(HubTest, TheTokenStaysWithTheHub) {
  server_->SetAccess("models/o/m", HubServer::Access::kPrivate);
  auto store = Open("o/m", "hf_secret");
  EXPECT_EQ(Content(*store, "sub/model.safetensors"), files_.at("sub/model.safetensors"));
  int stored = 0;
  for (const HubServer::Seen& seen : server_->seen()) {
    EXPECT_EQ(seen.authorization, seen.storage ? "" : "Bearer hf_secret") << seen.target;
    stored += seen.storage;
  }
  EXPECT_EQ(stored, 1);
}

TEST_F(HubTest, RefusalsSayWhatToDo) {
  struct Case {
    const char *bucket, *token;
    Code code;
    std::vector<const char*> says;
  };
  server_->Commit("models/o/private", files_);
  server_->SetAccess("models/o/private", HubServer::Access::kPrivate);
  server_->Commit("datasets/o/gated", files_);
  server_->SetAccess("datasets/o/gated", HubServer::Access::kGated);
  const std::string page = server_->url() + "/datasets/o/gated";
  const std::vector<Case> cases = {
      {"o/none", "", Code::kNotFound, {"hf://o/none", "no model o/none", "HF_TOKEN", "NAME@main"}},
      {"o/none", "hf_secret", Code::kNotFound, {"no model o/none", "the token in use has no right"}},
      {"o/private", "", Code::kNotFound, {"o/private", "HF_TOKEN"}},
      {"datasets/o/gated", "", Code::kPermissionDenied, {"gated", page.c_str(), "HF_TOKEN"}},
      {"o/m", "hf_wrong", Code::kPermissionDenied, {"does not know the token", "HF_TOKEN"}},
      {"o/m@nowhere", "", Code::kNotFound, {"hf://o/m@nowhere", "no branch, tag or commit \"nowhere\""}},
  };
  for (const Case& one : cases) {
    auto store = Open(one.bucket, one.token);
    for (const Error& error : {Head(*store, "x").error(), List(*store, {}).error()}) {
      EXPECT_EQ(error.code(), one.code) << error.ToString();
      for (const char* words : one.says) EXPECT_THAT(error.ToString(), HasSubstr(words));
      EXPECT_THAT(error.ToString(), Not(HasSubstr("hf_secret")));
      EXPECT_THAT(error.ToString(), Not(HasSubstr("hf_wrong")));
    }
  }
}

TEST_F(HubTest, TransientFailuresAreTriedAgain) {
  for (const Fault fault : {Fault::kThrottle, Fault::kUnavailable, Fault::kCut, Fault::kDamage}) {
    std::map<std::string, int> tries;
    server_->SetFaults([&](const HubServer::Seen& seen) {
      return ++tries[seen.target + seen.range] <= 2 ? fault : Fault::kNone;  // of each kind of request
    });
    auto store = Open("o/m");
    EXPECT_EQ(Content(*store, "config.json"), "{}");
    EXPECT_EQ(Content(*store, "sub/model.safetensors"), files_.at("sub/model.safetensors"));
    server_->SetFaults({});
  }
}

TEST_F(HubTest, DamageThatRepeatsIsAnError) {
  server_->SetFaults([](const HubServer::Seen&) { return Fault::kDamage; });
  auto store = Open("o/m");
  for (const char* path : {"config.json", "sub/model.safetensors"}) {
    auto content = GetAll(*store, path, kMiB);
    ASSERT_FALSE(content) << path;
    EXPECT_EQ(content.error().code(), Code::kCorrupt);
    EXPECT_THAT(content.error().ToString(), HasSubstr(path));
    EXPECT_THAT(content.error().ToString(), Not(HasSubstr("signature")));
  }
}

TEST_F(HubTest, PartsGoStraightToTheStorageUntilItsAddressExpires) {
  const std::string path = "sub/model.safetensors", content = files_.at(path);
  auto store = Open("o/m");
  auto asked_hub = [&] {
    int asked = 0;
    for (const HubServer::Seen& seen : server_->seen()) asked += seen.target.contains("/resolve/");
    return asked;
  };
  EXPECT_EQ(Range(*store, path, 100, 50), content.substr(100, 50));
  EXPECT_EQ(server_->seen().back().range, "bytes=100-149");
  EXPECT_EQ(Range(*store, path, 49'990, 50), content.substr(49'990));
  EXPECT_EQ(server_->seen().back().range, "bytes=49990-49999");
  EXPECT_EQ(asked_hub(), 1);
  server_->ExpireAddresses();
  EXPECT_EQ(Range(*store, path, 0, 50), content.substr(0, 50));
  EXPECT_EQ(asked_hub(), 2);
  clock_.Advance(std::chrono::minutes(6));
  EXPECT_EQ(Range(*store, path, 0, 5), content.substr(0, 5));
  EXPECT_EQ(asked_hub(), 3);
}

TEST_F(HubTest, AnotherVersionIsSeenWithoutARequest) {
  auto store = Open("o/m");
  ASSERT_TRUE(Head(*store, "config.json"));
  const std::size_t requests = server_->seen().size();
  std::byte into[10];
  auto got = Get(*store, "config.json", {.if_match = "other"}, into);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), Code::kPreconditionFailed);
  EXPECT_EQ(server_->seen().size(), requests);
}

TEST_F(HubTest, WritesAreRefused) {
  auto store = Open("o/m");
  const Error errors[] = {Put(*store, "k", AsBytes("x")).error(), Delete(*store, "k").error(),
                          Copy(*store, "a", "k").error(), CreateMultipart(*store, "k").error()};
  for (const Error& error : errors) {
    EXPECT_EQ(error.code(), Code::kReadOnly);
    EXPECT_THAT(error.message(), HasSubstr("hf://o/m/k"));
    EXPECT_THAT(error.message(), HasSubstr("s3://"));
  }
  EXPECT_TRUE(server_->seen().empty());
}

TEST_F(HubTest, StoresAreNamedByTheirHub) {
  EXPECT_EQ(Open("datasets/o/d@v1")->Identity(), "hf://" + server_->url().substr(7) + "/datasets/o/d@v1");
}

TEST(HubFiles, AnswersThatAreNotTheHubs) {
  for (const char* text : {"<html>", "{}", "[1]", R"([{"type": "file", "path": "a", "size": 1, "oid": "zz"}])"}) {
    auto files = ParseHubFiles(text);
    ASSERT_FALSE(files) << text;
    EXPECT_THAT(files.error().ToString(), HasSubstr("HF_ENDPOINT"));
  }
}

}  // namespace
}  // namespace millrace::object::hf::testing
