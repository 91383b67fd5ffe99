// The object commands against stores that answer otherwise than S3: no byte may be lost and no deletion may follow from
// such an answer. The store is a scripted server in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/testing/scripted_server.h"
#include "tests/support/program.h"

namespace millrace {
namespace {

using http::testing::Answer;
using http::testing::ScriptedServer;
using testing::HasSubstr;
using testing::Not;
using testing_support::Ran;
using Reply = ScriptedServer::Reply;
using Seen = ScriptedServer::Seen;

/// Returns the value of a parameter of a request, decoded; empty if the request does not have it.
std::string Parameter(const Seen& seen, const std::string& name) {
  const std::string query = "&" + seen.target.substr(seen.target.find('?') + 1) + "&";
  const std::size_t at = query.find("&" + name + "=");
  if (at == query.npos) return {};
  const std::size_t begin = at + name.size() + 2;
  return *PercentDecode(query.substr(begin, query.find('&', begin) - begin), /*plus_is_space=*/true);
}

/// The objects of the bucket "bucket". Tests replace single answers.
class OddStores : public testing::Test {
 protected:
  struct StoredObject {
    std::string bytes, etag;
  };

  void SetUp() override {
    if (!program_.available()) GTEST_SKIP() << "MILLRACE_BIN does not say where the program is";
    program_.env().insert({{"AWS_ENDPOINT_URL", server_.url()},
                           {"AWS_ACCESS_KEY_ID", "key"},
                           {"AWS_SECRET_ACCESS_KEY", "secret"},
                           {"AWS_REGION", "us-east-1"}});
  }

  Ran Millrace(std::vector<std::string> arguments) {
    HandOver();
    Ran ran = program_.Run(std::move(arguments));
    HandOver();
    return ran;
  }
  /// While a program runs, the server's thread uses the members. The program's messages order the two threads, but
  /// ThreadSanitizer sees only locks.
  void HandOver() { MutexLock lock(mutex_); }
  void Store(const std::string& key, std::string bytes) {
    objects_[key] = {std::move(bytes), fmt::format("version-{}", ++versions_)};
  }
  std::string Stored(const std::string& key) {
    const auto found = objects_.find(key);
    return found == objects_.end() ? "<absent>" : found->second.bytes;
  }

  Reply Handle(const Seen& seen) {
    MutexLock lock(mutex_);
    if (instead_) {
      if (auto reply = instead_(seen)) return *std::move(reply);
    }
    const std::string path = *PercentDecode(seen.target.substr(0, seen.target.find('?')), false);
    const std::string key = path.substr(std::min(path.size(), std::string_view("/bucket/").size()));
    if (key.empty() && seen.method == "GET")
      return List(Parameter(seen, "prefix"), Parameter(seen, "continuation-token"));
    if (key.empty()) return DeleteNamed(seen);
    if (seen.method == "PUT") return Write(seen, key);
    if (seen.method == "DELETE") {
      objects_.erase(key);
      return {Answer(204, "")};
    }
    return Read(seen, key);
  }
  /// Lists pages of 1,000 keys. A token is the number of keys before its page.
  Reply List(const std::string& prefix, const std::string& token) {
    std::vector<std::string> keys;
    for (const auto& [key, object] : objects_) {
      if (key.starts_with(prefix)) keys.push_back(key);
    }
    if (reorder_) reorder_(keys);
    const std::size_t first = token.empty() ? 0 : std::stoul(token), end = std::min(first + 1'000, keys.size());
    std::string page = "<ListBucketResult>";
    if (end < keys.size())
      page += fmt::format("<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>", end);
    for (const std::string& key : std::vector(keys.begin() + static_cast<std::ptrdiff_t>(first),
                                              keys.begin() + static_cast<std::ptrdiff_t>(end))) {
      page += fmt::format(
          "<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag><LastModified>2026-01-01T00:00:00Z</LastModified>"
          "</Contents>",
          key, objects_[key].bytes.size(), objects_[key].etag);
    }
    return {Answer(200, page + "</ListBucketResult>")};
  }
  Reply DeleteNamed(const Seen& seen) {
    for (std::size_t at = seen.body.find("<Key>"); at != seen.body.npos; at = seen.body.find("<Key>", at + 1)) {
      objects_.erase(seen.body.substr(at + 5, seen.body.find("</Key>", at) - at - 5));
    }
    return {Answer(200, "<DeleteResult></DeleteResult>")};
  }
  Reply Write(const Seen& seen, const std::string& key) {
    const std::string source = *PercentDecode(std::string(seen.headers.Get("x-amz-copy-source")), false);
    if (source.empty()) {
      Store(key, seen.body);
      return {Answer(200, "", fmt::format("ETag: \"{}\"\r\nServer: AmazonS3\r\n", objects_[key].etag))};
    }
    Store(key, objects_[source.substr(std::string_view("/bucket/").size())].bytes);
    return {Answer(200, fmt::format("<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>", objects_[key].etag))};
  }
  Reply Read(const Seen& seen, const std::string& key) {
    const auto found = objects_.find(key);
    if (found == objects_.end()) return {Answer(404, "<Error><Code>NoSuchKey</Code></Error>")};
    const auto& [bytes, etag] = found->second;
    std::string fields = fmt::format("ETag: \"{}\"\r\n", etag);
    if (seen.method == "HEAD") {
      return {fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n", bytes.size(), fields)};
    }
    const std::string range(seen.headers.Get("range"));
    if (range.empty()) return {Answer(200, bytes, fields)};
    const std::size_t first = std::stoul(range.substr(6)), last = std::stoul(range.substr(range.find('-') + 1));
    const std::string part = bytes.substr(first, last - first + 1);
    fields += fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, first + part.size() - 1, bytes.size());
    return {Answer(206, part, fields)};
  }

  testing_support::Program program_;
  Mutex mutex_;
  std::map<std::string, StoredObject> objects_;
  int versions_ = 0;
  std::function<std::optional<Reply>(const Seen&)> instead_;  ///< answers in place of the store
  std::function<void(std::vector<std::string>&)> reorder_;    ///< changes what a listing names
  ScriptedServer server_{[this](const Seen& seen) { return Handle(seen); }};
};

TEST_F(OddStores, AHeadWithoutALengthLosesNothing) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method != "HEAD" || objects_.empty()) return std::nullopt;
    return Reply{fmt::format("HTTP/1.1 200 OK\r\nETag: \"{}\"\r\n\r\n", objects_.begin()->second.etag)};
  };
  const std::string content(9'000'000, 'x');  // in parts
  Store("k", content);
  EXPECT_EQ(Millrace({"cat", "s3://bucket/k"}).out, content);
  EXPECT_THAT(Millrace({"head", "--json", "s3://bucket/k"}).out, HasSubstr("\"size\":9000000"));
  EXPECT_EQ(Millrace({"mv", "s3://bucket/k", "got"}).exit, 0);
  EXPECT_EQ(program_.Read("got"), content);
  EXPECT_EQ(Stored("k"), "<absent>");
}

TEST_F(OddStores, AnObjectWhoseSizeNobodyTellsStays) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method != "HEAD" && seen.method != "GET") return std::nullopt;
    std::string head = fmt::format("HTTP/1.1 200 OK\r\nETag: \"{}\"\r\n", objects_["k"].etag);
    if (seen.method == "HEAD") return Reply{head + "\r\n"};
    return Reply{head + "Transfer-Encoding: chunked\r\n\r\n7\r\ncontent\r\n0\r\n\r\n"};
  };
  Store("k", "content");
  const Ran ran = Millrace({"mv", "s3://bucket/k", "got"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("size"));
  EXPECT_EQ(Stored("k"), "content");
  EXPECT_EQ(program_.Read("got"), "<absent>");
}

TEST_F(OddStores, ASourceThatIsReplacedWhileItIsMovedInTheStoreStays) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (!seen.headers.Has("x-amz-copy-source")) return std::nullopt;
    Reply copied = Write(seen, "to");
    Store("from", "newer");
    return copied;
  };
  Store("from", "older");
  const Ran ran = Millrace({"mv", "s3://bucket/from", "s3://bucket/to"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_THAT(ran.err, HasSubstr("the new object stays"));
  EXPECT_EQ(Stored("from"), "newer");
  EXPECT_EQ(Stored("to"), "older");
}

TEST_F(OddStores, ACopyThatIsNotWholeKeepsTheSource) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method != "PUT") return std::nullopt;
    const Reply written = Write(seen, "to");
    objects_["to"].bytes.pop_back();
    return written;
  };
  Store("from", "content");
  program_.Write("file", "content");
  for (const char* source : {"s3://bucket/from", "file"}) {
    const Ran ran = Millrace({"mv", source, "s3://bucket/to"});
    EXPECT_EQ(ran.exit, 1);
    EXPECT_THAT(ran.err, HasSubstr("has 6 bytes after the copy of 7 bytes; the source stays"));
  }
  EXPECT_EQ(Stored("from"), "content");
  EXPECT_EQ(program_.Read("file"), "content");
}

TEST_F(OddStores, AMoveToWhereOneMayOnlyWriteStillMoves) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method == "PUT") return std::nullopt;
    return Reply{Answer(403, "")};
  };
  program_.Write("file", "content");
  EXPECT_EQ(Millrace({"mv", "file", "s3://bucket/to"}).exit, 0);
  EXPECT_EQ(Stored("to"), "content");
  EXPECT_EQ(program_.Read("file"), "<absent>");
}

TEST_F(OddStores, AStoreThatBearsAmazonsNameGetsPlainBodies) {
  for (int i = 0; i < 20; ++i) program_.Write(fmt::format("d/{}", i), fmt::format("file {}", i));
  EXPECT_EQ(Millrace({"mv", "-r", "d/", "s3://bucket/d/"}).exit, 0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Stored(fmt::format("d/{}", i)), fmt::format("file {}", i));
}

TEST_F(OddStores, AListingOutOfOrderDeletesNothing) {
  std::set<std::string> names = {"z"};
  for (int i = 0; i < 1'100; ++i) names.insert(fmt::format("f{:04}", i));
  for (const std::string& name : names) {
    Store("d/" + name, "x");
    program_.Write("d/" + name, "x");
  }
  reorder_ = [](std::vector<std::string>& keys) { std::ranges::rotate(keys, keys.end() - 1); };  // z is the first
  Ran ran = Millrace({"sync", "--delete", "--size-only", "s3://bucket/d/", "d/"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("out of order"));
  for (const std::string& name : names) ASSERT_EQ(program_.Read("d/" + name), "x") << name;
  program_.Write("other/a", "x");
  ran = Millrace({"sync", "--delete", "--size-only", "other/", "s3://bucket/d/"});
  EXPECT_NE(ran.exit, 0);
  for (const std::string& name : names) ASSERT_EQ(Stored("d/" + name), "x") << name;
}

TEST_F(OddStores, ACopyThatFailsKeepsWhatTheSourceLacks) {
  Store("d/extra", "x");
  program_.Write("d/a", "a");
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method != "PUT") return std::nullopt;
    return Reply{Answer(403, "<Error><Code>AccessDenied</Code></Error>")};
  };
  const Ran ran = Millrace({"sync", "--delete", "d/", "s3://bucket/d/"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("1 names that the source lacks were not deleted"));
  EXPECT_EQ(Stored("d/extra"), "x");
}

TEST_F(OddStores, AListingWithoutETagsIsCopiedAndMoved) {
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method != "GET" || Parameter(seen, "list-type").empty()) return std::nullopt;
    Reply page = List(Parameter(seen, "prefix"), "");
    for (std::size_t at; (at = page.bytes.find("<ETag>")) != page.bytes.npos;)
      page.bytes.replace(at, page.bytes.find("</ETag>") + 7 - at,
                         std::string(page.bytes.find("</ETag>") + 7 - at, ' '));
    return page;
  };
  const std::string content(9'000'000, 'x');  // in parts
  Store("d/k", content);
  EXPECT_EQ(Millrace({"sync", "s3://bucket/d/", "d/"}).exit, 0);
  EXPECT_EQ(program_.Read("d/k"), content);
  EXPECT_EQ(Millrace({"mv", "-r", "s3://bucket/d/", "e/"}).exit, 0);
  EXPECT_EQ(program_.Read("e/k"), content);
  EXPECT_EQ(Stored("d/k"), "<absent>");
}

TEST_F(OddStores, ABucketGoesWhereUploadsCannotBeListed) {
  Store("k", "x");
  instead_ = [&](const Seen& seen) -> std::optional<Reply> {
    if (seen.method == "GET" && seen.target.find("uploads") != seen.target.npos)
      return Reply{Answer(404, "<Error><Code>NoSuchUpload</Code></Error>")};
    return std::nullopt;
  };
  EXPECT_EQ(Millrace({"rb", "--force", "--yes", "s3://bucket"}).exit, 0);
  EXPECT_EQ(Stored("k"), "<absent>");
}

TEST_F(OddStores, KeysOutsideOfThePrefixAreNobodysBusiness) {
  for (const char* key : {"a", "foo/x", "foobar/y"}) Store(key, "x");
  reorder_ = [](std::vector<std::string>& keys) { keys = {"a", "foo/x", "foobar/y"}; };  // whatever the prefix
  for (const char* command : {"ls", "rm"}) {
    const Ran ran = Millrace({command, "-r", "s3://bucket/foo/"});
    EXPECT_EQ(ran.exit, 0) << ran.err;
    EXPECT_THAT(ran.out, Not(HasSubstr("bar")));
    EXPECT_THAT(ran.err, HasSubstr("outside of the prefix"));
  }
  EXPECT_EQ(Stored("foo/x"), "<absent>");
  EXPECT_EQ(Stored("foobar/y"), "x");
  EXPECT_EQ(Stored("a"), "x");
}

TEST_F(OddStores, AListingWithoutEndIsAnError) {
  Store("a", "x");
  instead_ = [&](const Seen&) -> std::optional<Reply> {
    return Reply{Answer(200,
                        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t"
                        "</NextContinuationToken><Contents><Key>a</Key><Size>1</Size>"
                        "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>")};
  };
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"du", "s3://bucket/"}, {"ls", "-r", "s3://bucket/"}, {"ls", "s3://bucket/"}}) {
    const Ran ran = Millrace(command);
    EXPECT_EQ(ran.exit, 1);
    EXPECT_THAT(ran.err, HasSubstr("does not end"));
  }
}

}  // namespace
}  // namespace millrace
