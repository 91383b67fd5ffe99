// The object verbs end to end: the real program, an S3 endpoint in this process, files on disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using testing_support::Ran;

using ObjectCommands = ObjectFixture;

TEST_F(ObjectCommands, AFileGoesThereAndBack) {
  std::string content(9 * kMiB + 17, 'x');  // two parts
  WriteLocal("file.bin", content);
  EXPECT_EQ(Millrace({"cp", "file.bin", "s3://bucket/folder/"}).exit, 0);
  EXPECT_EQ(Millrace({"cp", "s3://bucket/folder/file.bin", "back.bin"}).exit, 0);
  EXPECT_TRUE(Local("back.bin") == content);
  EXPECT_TRUE(Millrace({"cat", "s3://bucket/folder/file.bin"}).out == content);
  EXPECT_EQ(Millrace({"cp", "s3://bucket/folder/file.bin", "file:///" + work().string() + "/by-url"}).exit, 0);
  EXPECT_TRUE(Local("by-url") == content);
}

TEST_F(ObjectCommands, FoldersGlobsAndFilters) {
  for (const char* name : {"d/a.txt", "d/b.bin", "d/sub/c.txt", "d/sub/d.tmp"}) WriteLocal(name, name);
  EXPECT_EQ(Millrace({"cp", "d", "s3://bucket/x/"}).exit, 2) << "a folder needs --recursive";
  EXPECT_EQ(Millrace({"cp", "-r", "d", "s3://bucket/x"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/x/"), ElementsAre("x/a.txt", "x/b.bin", "x/sub/c.txt", "x/sub/d.tmp"));
  EXPECT_EQ(Millrace({"cp", "s3://bucket/x/*.txt", "texts/"}).exit, 0);
  EXPECT_THAT(LocalFiles("texts"), UnorderedElementsAre("a.txt", "sub/c.txt"));
  EXPECT_EQ(Local("texts/sub/c.txt"), "d/sub/c.txt");
  EXPECT_EQ(Millrace({"cp", "-r", "--exclude", "*.tmp", "--exclude", "*.bin", "s3://bucket/x/", "s3://bucket/y/"}).exit,
            0);
  EXPECT_THAT(Keys("s3://bucket/y/"), ElementsAre("y/a.txt", "y/sub/c.txt"));
  EXPECT_EQ(Millrace({"mv", "s3://bucket/y/a.txt", "s3://bucket/z"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/y/"), ElementsAre("y/sub/c.txt"));
  EXPECT_EQ(Millrace({"cat", "s3://bucket/z"}).out, "d/a.txt");
}

TEST_F(ObjectCommands, TheLastFilterThatMatchesDecides) {
  for (const char* name : {"d/a.txt", "d/b.bin", "d/old/c.txt"}) WriteLocal(name, name);
  using Words = std::vector<std::string>;
  for (const auto& [filters, expected] :
       {std::pair(Words{"--exclude", "*", "--include", "*.txt"}, Words{"x/a.txt", "x/old/c.txt"}),
        {{"--include", "*.txt", "--exclude=old/*"}, {"x/a.txt"}},
        {{"--exclude", "*.txt", "--include", "old/*"}, {"x/b.bin", "x/old/c.txt"}}}) {
    for (const Words& verb : {Words{"cp", "-r"}, {"sync"}}) {
      Words command = verb;
      command.insert(command.end(), filters.begin(), filters.end());
      command.insert(command.end(), {"d/", "s3://bucket/x/"});
      EXPECT_EQ(Millrace(command).exit, 0);
      EXPECT_EQ(Keys("s3://bucket/x/"), expected);
      EXPECT_EQ(Millrace({"rm", "-r", "s3://bucket/x/"}).exit, 0);
    }
  }
  ASSERT_EQ(Millrace({"cp", "-r", "d/", "s3://bucket/x/"}).exit, 0);
  EXPECT_EQ(Millrace({"rm", "-r", "--exclude", "*", "--include", "*.bin", "s3://bucket/x/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/x/"), ElementsAre("x/a.txt", "x/old/c.txt"));
  for (const Words& verb : {Words{"cp", "-r"}, {"sync"}, {"sync", "--delete"}, {"mv", "-r"}}) {
    Words command = verb;
    command.insert(command.end(), {"--include", "*.txt", "--exclude", "*", "d/", "s3://bucket/y/"});
    const Ran ran = Millrace(command);
    EXPECT_EQ(ran.exit, 0);
    EXPECT_THAT(ran.err, HasSubstr("--include and --exclude leave out all that is at"));
  }
  EXPECT_THAT(Millrace({"rm", "-r", "--exclude", "*", "s3://bucket/x/"}).err, HasSubstr("leave out all"));
}

TEST_F(ObjectCommands, SyncCopiesOnlyWhatDiffers) {
  for (const char* name : {"d/a", "d/b", "d/sub/c"}) WriteLocal(name, name);
  EXPECT_EQ(Millrace({"sync", "d", "s3://bucket/d"}).exit, 0);
  Json summary = Millrace({"sync", "d", "s3://bucket/d", "--json"}).objects().back();
  EXPECT_EQ(summary["items"], 0);
  EXPECT_EQ(summary["unchanged"], 3);
  WriteLocal("d/b", "longer than before");
  fs::remove(work() / "d/a");
  EXPECT_THAT(Millrace({"sync", "--delete", "--dry-run", "d", "s3://bucket/d"}).lines(),
              ElementsAre("sync " + (work() / "d/b").string() + " s3://bucket/d/b", "sync delete s3://bucket/d/a"));
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/a", "d/b", "d/sub/c")) << "a dry run changes nothing";
  EXPECT_EQ(Millrace({"sync", "--delete", "d", "s3://bucket/d"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/b", "d/sub/c"));
  EXPECT_EQ(Millrace({"sync", "s3://bucket/d", "copy"}).exit, 0);
  EXPECT_EQ(Local("copy/b"), "longer than before");
  EXPECT_EQ(Millrace({"sync", "s3://bucket/d", "copy", "--exact-timestamps", "--json"}).objects().back()["items"], 0);
  WriteLocal("copy/extra", "x");
  EXPECT_EQ(Millrace({"sync", "--delete", "s3://bucket/d", "copy"}).exit, 0);
  EXPECT_THAT(LocalFiles("copy"), UnorderedElementsAre("b", "sub/c"));
}

TEST_F(ObjectCommands, JsonSaysWhatHappenedToEachItem) {
  WriteLocal("d/a", "12345");
  WriteLocal("d/b", "1");
  auto objects = Millrace({"cp", "-r", "--json", "d/", "s3://bucket/"}).objects();
  ASSERT_EQ(objects.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(objects[i]["status"], "ok");
    EXPECT_THAT(objects[i]["destination"].get<std::string>(), HasSubstr("s3://bucket/"));
  }
  EXPECT_EQ(objects[2]["event"], "summary");
  EXPECT_EQ(objects[2]["items"], 2);
  EXPECT_EQ(objects[2]["bytes"], 6);
  auto listed = Millrace({"ls", "--json", "s3://bucket/"}).objects();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0]["key"], "a");
  EXPECT_EQ(listed[0]["size"], 5);
  EXPECT_FALSE(listed[0]["etag"].get<std::string>().empty());
  EXPECT_TRUE(ParseIso8601(listed[0]["modified"].get<std::string>()));
  Json head = Millrace({"head", "--json", "s3://bucket/a"}).objects().at(0);
  EXPECT_EQ(head["size"], 5);
  Json usage = Millrace({"du", "--json", "s3://bucket"}).objects().at(0);
  EXPECT_EQ(usage["bytes"], 6);
  EXPECT_EQ(usage["objects"], 2);
}

TEST_F(ObjectCommands, ExitStatusesTellFailuresApart) {
  WriteLocal("file", "x");
  EXPECT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  Ran absent = Millrace({"cp", "s3://bucket/absent", "x"});
  EXPECT_EQ(absent.exit, 4);
  EXPECT_THAT(absent.err, HasSubstr("s3://bucket/absent does not exist"));
  EXPECT_EQ(Millrace({"ls", "s3://bucket/absent"}).exit, 4);
  EXPECT_EQ(Millrace({"rm", "s3://bucket/absent"}).exit, 4);
  EXPECT_EQ(Millrace({"cp", "absent", "s3://bucket/k"}).exit, 4);
  EXPECT_EQ(Millrace({"cp", "file", "s3://bad bucket/k"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "file", "gs://bucket/k"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "file"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "--recursiv", "file", "s3://bucket/"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "file", "file"}).exit, 2);
  EXPECT_EQ(Millrace({"sync", "absent", "s3://bucket/k"}).exit, 4);
  EXPECT_EQ(Millrace({"rm", "s3://bucket"}).exit, 2) << "a whole bucket needs --recursive";
  Ran denied = Millrace({"cat", "s3://bucket/k"}, {{"AWS_SECRET_ACCESS_KEY", "wrong"}});
  EXPECT_EQ(denied.exit, 5);
  EXPECT_THAT(denied.err, Not(HasSubstr("wrong")));
}

TEST_F(ObjectCommands, FailuresOfSomeAreNamedAndTheRestGoesOn) {
  for (const char* name : {"d/a", "d/b", "d/c"}) WriteLocal(name, name);
  fs::create_directories(work() / "out/b");  // a folder where a file should go
  ASSERT_EQ(Millrace({"cp", "-r", "d", "s3://bucket/d"}).exit, 0);
  Ran ran = Millrace({"cp", "-r", "--json", "s3://bucket/d", "out"});
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.err, HasSubstr("s3://bucket/d/b"));
  EXPECT_EQ(Local("out/a"), "d/a");
  EXPECT_EQ(Local("out/c"), "d/c");
  EXPECT_EQ(ran.objects().back()["failed"], 1);
  EXPECT_THAT(LocalFiles("out"), UnorderedElementsAre("a", "c")) << "no temporary file stays";
}

TEST_F(ObjectCommands, KeysThatLeadOutOfTheDestinationAreRefused) {
  WriteLocal("evil", "evil");
  // The path that a client would normalize is sent as it is by the store.
  ASSERT_EQ(Millrace({"cp", "evil", "s3://bucket/in/../../evil"}).exit, 0);
  ASSERT_EQ(Millrace({"cp", "evil", "s3://bucket/in/good"}).exit, 0);
  Ran ran = Millrace({"cp", "-r", "s3://bucket/in/", "deep/out/"});
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.err, HasSubstr("refused"));
  EXPECT_THAT(LocalFiles("deep"), ElementsAre("out/good"));
}

TEST_F(ObjectCommands, PipeMetadataPresignAndBuckets) {
  EXPECT_EQ(Millrace({"mb", "s3://second"}).exit, 0);
  EXPECT_EQ(Millrace({"mb", "s3://second/key"}).exit, 2);
  EXPECT_THAT(Millrace({"ls"}).out, HasSubstr("s3://second"));
  EXPECT_EQ(Millrace({"pipe", "s3://second/empty"}).exit, 0);
  EXPECT_EQ(Millrace({"cat", "s3://second/empty"}).out, "");
  EXPECT_EQ(Millrace({"rb", "s3://second"}).exit, 1) << "it is not empty";
  WriteLocal("page.html", "<p>");
  EXPECT_EQ(Millrace({"cp", "--metadata", "Colour=blue", "page.html", "s3://second/"}).exit, 0);
  Json head = Millrace({"head", "--json", "s3://second/page.html"}).objects().at(0);
  EXPECT_EQ(head["content_type"], "text/html");
  EXPECT_EQ(head["metadata"]["colour"], "blue");
  EXPECT_THAT(Millrace({"presign", "s3://second/page.html", "--expires-in", "5m"}).out, HasSubstr("X-Amz-Expires=300"));
  EXPECT_EQ(Millrace({"cp", "s3://second/page.html", "s3://bucket/copied"}).exit, 0) << "between buckets";
  EXPECT_EQ(Millrace({"cat", "s3://bucket/copied"}).out, "<p>");
  EXPECT_EQ(Millrace({"rm", "-r", "s3://second"}).exit, 0);
  EXPECT_EQ(Millrace({"rb", "s3://second"}).exit, 0);
}

TEST_F(ObjectCommands, AccessPointsAreBuckets) {
  ASSERT_EQ(Millrace({"mb", "s3://team-a-123456789012"}).exit, 0);
  std::string endpoint = server_->endpoint();
  const std::string_view number = "127.0.0.1";
  ASSERT_NE(endpoint.find(number), std::string::npos) << endpoint;
  endpoint.replace(endpoint.find(number), number.size(), "localhost");  // the host of an access point is below it
  const std::map<std::string, std::string> env = {{"AWS_ENDPOINT_URL", endpoint}};
  const std::string point = "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/team-a";
  EXPECT_EQ(Millrace({"pipe", point + "/d/a"}, env, "content").exit, 0);
  EXPECT_EQ(Millrace({"cat", point + "/d/a"}, env).out, "content");
  EXPECT_THAT(Millrace({"ls", point + "/d/"}, env).out, HasSubstr("a"));
  EXPECT_EQ(Millrace({"cat", "s3://team-a-123456789012/d/a"}).out, "content");
  Ran number_only = Millrace({"cat", point + "/d/a"});
  EXPECT_EQ(number_only.exit, 2);
  EXPECT_THAT(number_only.err, HasSubstr("has no hosts for access points"));
  // The bucket that is behind an access point is not known: nothing is moved onto what may be itself.
  EXPECT_NE(Millrace({"mv", "s3://bucket/d/a", point + "/d/a"}, env).exit, 0);
}

TEST_F(ObjectCommands, CopiesOnlyOverWhatDiffers) {
  WriteLocal("d/a", "same size 1");
  WriteLocal("d/b", "same size 2");
  ASSERT_EQ(Millrace({"cp", "-r", "d/", "s3://bucket/x/"}).exit, 0);
  WriteLocal("d/b", "same size 3");
  auto items = [&](const char* flag) {
    Json summary = Millrace({"cp", "-r", "--json", "--dry-run", flag, "d/", "s3://bucket/x/"}).objects().back();
    EXPECT_EQ(summary["items"], 2) << "a dry run asks for nothing";
    return Millrace({"cp", "-r", "--json", flag, "d/", "s3://bucket/x/"}).objects();
  };
  Json by_size = items("--if-size-differ").back();
  EXPECT_EQ(by_size["unchanged"], 2);
  auto by_checksum = items("--checksum");
  EXPECT_EQ(by_checksum.back()["unchanged"], 1);
  EXPECT_THAT(by_checksum.front()["destination"].get<std::string>(), testing::EndsWith("/x/b"));
  EXPECT_EQ(Millrace({"cat", "s3://bucket/x/b"}).out, "same size 3");
  fs::last_write_time(work() / "d/a", fs::file_time_type::clock::now() - std::chrono::hours(1));
  fs::last_write_time(work() / "d/b", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(items("--if-newer").back()["unchanged"], 1);
  WriteLocal("d/a", "same size 4");
  fs::last_write_time(work() / "d/a", fs::file_time_type::clock::now() - std::chrono::hours(1));
  Json synced = Millrace({"sync", "--json", "--checksum", "d", "s3://bucket/x"}).objects().front();
  EXPECT_THAT(synced["destination"].get<std::string>(), testing::EndsWith("/x/a")) << "newer or not";
}

TEST_F(ObjectCommands, ListsComeFromStandardInput) {
  for (const char* name : {"a", "b", "c"}) WriteLocal(name, name);
  Ran ran = Millrace({"cp", "--json", "--files-from-stdin", "s3://bucket/l/"}, {}, "a\nb\nabsent\n");
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.err, HasSubstr("absent"));
  EXPECT_THAT(Keys("s3://bucket/l/"), ElementsAre("l/a", "l/b"));
  EXPECT_EQ(Millrace({"rm", "--files-from-stdin"}, {}, "s3://bucket/l/a\ns3://bucket/l/b\n").exit, 0);
  EXPECT_EQ(Millrace({"ls", "s3://bucket/l/"}).exit, 4) << "nothing is left";
}

TEST_F(ObjectCommands, RunsAFileOfCommands) {
  for (const char* name : {"a", "b c", "d"}) WriteLocal(name, name);
  WriteLocal("commands",
             "cp a s3://bucket/r/\n\n# a comment\ncp 'b c' s3://bucket/r/  # another\ncp \"d\" s3://bucket/r/e\\ f\n");
  EXPECT_EQ(Millrace({"run", "commands"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/r/"), ElementsAre("r/a", "r/b c", "r/e f"));
  Ran ran =
      Millrace({"run", "-"}, {},
               "rm s3://bucket/r/a\ncp --no-such-flag x y\nrun commands\nmv 'open\nrm s3://bucket/none\nmvv a b\n");
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.err, testing::AllOf(HasSubstr("-:2"), HasSubstr("-:3"), HasSubstr("-:4: a quote is not closed")));
  EXPECT_THAT(ran.err, HasSubstr("-:5: s3://bucket/none does not exist"));
  EXPECT_THAT(ran.err, HasSubstr("-:6: unknown command \"mvv\""));
  EXPECT_THAT(Keys("s3://bucket/r/"), ElementsAre("r/b c", "r/e f"));
}

TEST_F(ObjectCommands, DuplicateGrowsASample) {
  WriteLocal("s/a", "12345");
  WriteLocal("s/b", "12");
  ASSERT_EQ(Millrace({"cp", "-r", "s/", "s3://bucket/s/"}).exit, 0);
  EXPECT_EQ(Millrace({"duplicate", "s3://bucket/s/", "s3://bucket/big/"}).exit, 2) << "how far?";
  ASSERT_EQ(Millrace({"duplicate", "s3://bucket/s/", "s3://bucket/big", "--count", "3"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/big/"), ElementsAre("big/000000/a", "big/000000/b", "big/000001/a"));
  Json summary =
      Millrace({"duplicate", "--json", "s3://bucket/s/", "s3://bucket/big/", "--size", "20B"}).objects().back();
  EXPECT_EQ(summary["items"], 3);
  EXPECT_EQ(summary["unchanged"], 3);
  EXPECT_EQ(Millrace({"du", "--json", "s3://bucket/big"}).objects().at(0)["bytes"], 21);
}

TEST_F(ObjectCommands, AttributesAreKept) {
  WriteLocal("a.txt", "text");
  ASSERT_EQ(Millrace({"cp", "--cache-control", "max-age=60", "--content-disposition", "inline", "--metadata", "k=v",
                      "a.txt", "s3://bucket/a.txt"})
                .exit,
            0);
  ASSERT_EQ(Millrace({"cp", "s3://bucket/a.txt", "s3://bucket/b.txt"}).exit, 0);
  ASSERT_EQ(Millrace({"cp", "--metadata", "k=w", "s3://bucket/a.txt", "s3://bucket/c.txt"}).exit, 0);
  Json b = Millrace({"head", "--json", "s3://bucket/b.txt"}).objects().at(0);
  EXPECT_EQ(b["cache_control"], "max-age=60");
  EXPECT_EQ(b["content_disposition"], "inline");
  EXPECT_EQ(b["metadata"]["k"], "v");
  EXPECT_FALSE(b["crc32c"].get<std::string>().empty());
  EXPECT_EQ(Millrace({"head", "--json", "s3://bucket/c.txt"}).objects().at(0)["metadata"]["k"], "w");
  EXPECT_EQ(Millrace({"cp", "--sse", "rot13", "a.txt", "s3://bucket/x"}).exit, 2);
  EXPECT_EQ(Millrace({"cp", "--metadata", "=v", "a.txt", "s3://bucket/x"}).exit, 2);
}

TEST_F(ObjectCommands, FilesAloneNeedNoCredentials) {
  WriteLocal("d/a", "1");
  std::map<std::string, std::string> none = {
      {"AWS_ACCESS_KEY_ID", ""}, {"AWS_SECRET_ACCESS_KEY", ""}, {"AWS_ENDPOINT_URL", "http://127.0.0.1:9"}};
  EXPECT_EQ(Millrace({"cp", "-r", "d", "e"}, none).exit, 0);
  EXPECT_EQ(Local("e/a"), "1");
  EXPECT_THAT(Millrace({"ls", "e/"}, none).out, HasSubstr(" a\n"));
}

TEST_F(ObjectCommands, TakesTheHabitsOfOtherTools) {
  WriteLocal("a", std::string(2048, 'a'));
  EXPECT_EQ(Millrace({"cp", "-", "s3://bucket/h/a"}, {}, std::string(2048, 'a')).exit, 0);
  EXPECT_EQ(Millrace({"cp", "s3://bucket/h/a", "-"}).out, Local("a"));
  EXPECT_EQ(Millrace({"mv", "s3://bucket/h/a", "-"}).exit, 2);
  for (const char* flags : {"-h", "-lh", "--human-readable"}) {
    EXPECT_THAT(Millrace({"ls", flags, "s3://bucket/h/"}).out, HasSubstr("2.0 kB")) << flags;
  }
  EXPECT_THAT(Millrace({"du", "-h", "s3://bucket/h/"}).out, HasSubstr("2.0 kB"));
  EXPECT_THAT(Millrace({"ls", "--summarize", "s3://bucket/h/"}).out,
              testing::EndsWith("\nTotal Objects: 1\n   Total Size: 2048\n"));
  EXPECT_THAT(Millrace({"ls", "--help"}).out, HasSubstr("--summarize"));
  EXPECT_EQ(Millrace({"help", "cp"}).out, Millrace({"cp", "--help"}).out);
  EXPECT_EQ(Millrace({"help"}).out, Millrace({"--help"}).out);
  EXPECT_THAT(Millrace({"presign", "s3://bucket/h/a", "--expires-in", "60"}).out, HasSubstr("X-Amz-Expires=60"));
}

TEST_F(ObjectCommands, NoClobberKeepsWhatIsThere) {
  WriteLocal("a", "new");
  ASSERT_EQ(Millrace({"pipe", "s3://bucket/n/a"}, {}, "old").exit, 0);
  Ran kept = Millrace({"cp", "-n", "--json", "a", "s3://bucket/n/a"});
  EXPECT_EQ(kept.exit, 0);
  EXPECT_EQ(kept.objects().back()["unchanged"], 1);
  EXPECT_EQ(Millrace({"mv", "--no-clobber", "a", "s3://bucket/n/a"}).exit, 0);
  EXPECT_EQ(Local("a"), "new") << "what was not sent stays";
  EXPECT_EQ(Millrace({"cp", "-n", "s3://bucket/n/a", "a"}).exit, 0);
  EXPECT_EQ(Local("a"), "new");
  EXPECT_NE(Millrace({"cp", "-n", "-", "s3://bucket/n/a"}, {}, "other").exit, 0);
  EXPECT_EQ(Millrace({"cat", "s3://bucket/n/a"}).out, "old");
}

TEST_F(ObjectCommands, ADownloadThatIsCutOffInAllItsPartsGoesOnWhereItWas) {
  std::string content(20 * kMiB, 'x');
  for (std::size_t i = 0; i < content.size(); i += 4096) content[i] = static_cast<char>('a' + i / 4096 % 26);
  WriteLocal("file", content);
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  ASSERT_TRUE(server_->SetFaults("truncate=3MiB,op=GetObject,count=3; error=403,op=GetObject,skip=3"));
  EXPECT_NE(Millrace({"cp", "--part-size", "8MiB", "s3://bucket/k", "got"}).exit, 0);
  EXPECT_EQ(Local("got"), "<absent>");
  ASSERT_TRUE(server_->SetFaults(""));
  const Ran resumed = Millrace({"cp", "--json", "--part-size", "8MiB", "s3://bucket/k", "got"});
  ASSERT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_EQ(resumed.objects().back().value("resumed_bytes", 0u), 0u) << "a refusal leaves nothing";
  ASSERT_TRUE(server_->SetFaults("truncate=3MiB,op=GetObject,count=3; error=500,op=GetObject,skip=3"));
  EXPECT_NE(Millrace({"cp", "--part-size", "8MiB", "s3://bucket/k", "again"}, {{"AWS_MAX_ATTEMPTS", "2"}}).exit, 0);
  ASSERT_TRUE(server_->SetFaults(""));
  const Ran went_on = Millrace({"cp", "--json", "--part-size", "8MiB", "s3://bucket/k", "again"});
  ASSERT_EQ(went_on.exit, 0) << went_on.err;
  EXPECT_GE(went_on.objects().back().value("resumed_bytes", 0u), 3 * kMiB) << "three parts, of which none was whole";
  EXPECT_TRUE(Local("again") == content);
}

TEST_F(ObjectCommands, AConnectionThatBreaksAfterSomeBytesIsNoFailure) {
  const std::string content(3'000'000, 'x');
  WriteLocal("file", content);
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  // Far more breaks than AWS_MAX_ATTEMPTS.
  for (const char* fault : {"reset=100000,op=GetObject", "truncate=100000,op=GetObject"}) {
    ASSERT_TRUE(server_->SetFaults(fault));
    EXPECT_EQ(Millrace({"cp", "s3://bucket/k", "got"}, {{"AWS_MAX_ATTEMPTS", "3"}}).exit, 0) << fault;
    EXPECT_TRUE(Local("got") == content);
    EXPECT_TRUE(Millrace({"cat", "s3://bucket/k"}, {{"AWS_MAX_ATTEMPTS", "3"}}).out == content) << fault;
  }
}

TEST_F(ObjectCommands, MetadataThatTheStoreDropsAreNamed) {
  WriteLocal("file", "content");
  ASSERT_TRUE(server_->SetFaults("drop-headers"));
  const std::vector<std::string> given = {"--cache-control", "max-age=5", "--metadata", "a=1"};
  auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), given.begin(), given.end());
    return words;
  };
  for (const Ran& ran :
       {Millrace(with({"cp", "file", "s3://bucket/k"})), Millrace(with({"cp", "s3://bucket/k", "s3://bucket/l"})),
        Millrace(with({"pipe", "s3://bucket/m"}), {}, "content")}) {
    EXPECT_EQ(ran.exit, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("has not kept Cache-Control;"));
  }
  ASSERT_TRUE(server_->SetFaults(""));
  EXPECT_EQ(Millrace(with({"cp", "file", "s3://bucket/k"})).err, "");
}

TEST_F(ObjectCommands, EndpointsThatAreElsewhereOrHaveAnotherTimeAreFollowed) {
  WriteLocal("d/a", "content");
  for (const char* odd : {"clock-ahead", "region-malformed", "region-redirect", "redirect", "gzip", "duplicate-headers",
                          "trailers-unchecked"}) {
    ASSERT_TRUE(server_->SetFaults(odd));
    for (const std::vector<std::string>& words : {std::vector<std::string>{"cp", "d/a", "s3://bucket/x/a"},
                                                  {"head", "s3://bucket/x/a"},
                                                  {"cp", "s3://bucket/x/a", "got"},
                                                  {"sync", "--checksum", "d/", "s3://bucket/x/"},
                                                  {"mv", "s3://bucket/x/a", "s3://bucket/x/b"},
                                                  {"rm", "-r", "s3://bucket/x/"}}) {
      const Ran ran = Millrace(words);
      EXPECT_EQ(ran.exit, 0) << odd << ": " << words[0] << ": " << ran.err;
    }
    EXPECT_EQ(Local("got"), "content");
  }
}

TEST_F(ObjectCommands, ObjectsThatAProxyCompressesAreRefused) {
  const std::string content(10'000, 'x');
  WriteLocal("file", content);
  ASSERT_EQ(Millrace({"cp", "file", "s3://bucket/k"}).exit, 0);
  ASSERT_EQ(Millrace({"cp", "--content-encoding", "gzip", "file", "s3://bucket/stored"}).exit, 0);
  ASSERT_TRUE(server_->SetFaults("gzip-always"));
  const Ran ran = Millrace({"cp", "s3://bucket/k", "got"});
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("a proxy before the endpoint compresses objects (gzip)"));
  EXPECT_EQ(Local("got"), "<absent>");
  ASSERT_TRUE(server_->SetFaults("chunked"));
  ASSERT_EQ(Millrace({"cp", "s3://bucket/stored", "got"}).exit, 0) << "an object may be stored so";
  EXPECT_TRUE(Local("got") == content);
}

TEST_F(ObjectCommands, ATokenThatExpiresBetweenTwoRequestsIsRenewed) {
  for (int i = 0; i < 10; ++i) WriteLocal(fmt::format("d/{}", i), "content");
  // A new session for each call.
  WriteLocal("sessions",
             "#!/bin/sh\necho x >>calls\nprintf '{\"Version\":1,\"AccessKeyId\":\"key\",\"SecretAccessKey\":"
             "\"secret-of-the-test\",\"SessionToken\":\"token-%s\",\"Expiration\":\"2099-01-01T00:00:00Z\"}' "
             "$(wc -l <calls)\n");
  std::filesystem::permissions(work() / "sessions", std::filesystem::perms::owner_all);
  WriteLocal("config", fmt::format("[profile sessions]\ncredential_process = {}\n", (work() / "sessions").string()));
  ASSERT_TRUE(server_->SetFaults("token-expires"));
  const std::map<std::string, std::string> env = {{"AWS_CONFIG_FILE", (work() / "config").string()},
                                                  {"AWS_PROFILE", "sessions"},
                                                  {"AWS_ACCESS_KEY_ID", ""},
                                                  {"AWS_SECRET_ACCESS_KEY", ""}};
  const Ran ran = Millrace({"cp", "--concurrency", "1", "-r", "d/", "s3://bucket/d/"}, env);
  EXPECT_EQ(ran.exit, 0) << ran.err;
  const Ran fixed = Millrace({"cp", "-r", "d/", "s3://bucket/e/"});
  EXPECT_NE(fixed.exit, 0) << "these keys have no source of others";
  EXPECT_THAT(fixed.err, HasSubstr("session has expired"));
  ASSERT_TRUE(server_->SetFaults(""));
  EXPECT_EQ(Keys("s3://bucket/d/").size(), 10u);
}

TEST_F(ObjectCommands, BucketsGoWithAllThatIsInThem) {
  ASSERT_EQ(Millrace({"mb", "s3://second"}).exit, 0);
  ASSERT_EQ(Millrace({"pipe", "s3://second/.millrace/a"}, {}, "a").exit, 0);
  auto connection = object::OpenConnection({.endpoint_url = server_->endpoint()});
  setenv("AWS_ACCESS_KEY_ID", "key", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test", 1);
  auto store = object::Locate(**connection, "s3://second");
  ASSERT_TRUE(store);
  ASSERT_TRUE(object::CreateMultipart(*store->store, "part/b", {}));
  auto uploads = Millrace({"uploads", "ls", "--json", "s3://second"}).objects();
  ASSERT_EQ(uploads.size(), 1u);
  EXPECT_EQ(uploads[0]["key"], "part/b");
  EXPECT_EQ(Millrace({"uploads", "abort", "--older-than", "1h", "s3://second"}).exit, 0);
  EXPECT_EQ(Millrace({"uploads", "ls", "s3://second/part/"}).lines().size(), 1u);
  EXPECT_EQ(Millrace({"uploads", "abort", "s3://second/other/"}).exit, 0);
  EXPECT_EQ(Millrace({"rb", "s3://second"}).exit, 1);
  EXPECT_EQ(Millrace({"uploads", "abort", "s3://second/part/"}).exit, 0);
  EXPECT_THAT(Millrace({"uploads", "ls", "s3://second"}).lines(), testing::IsEmpty());
  ASSERT_TRUE(object::CreateMultipart(*store->store, "part/b", {}));
  EXPECT_EQ(Millrace({"rb", "--force", "s3://second"}).exit, 0);
  EXPECT_EQ(Millrace({"ls", "s3://second"}).exit, 4);
}

TEST_F(ObjectCommands, WhatIsKeptBesideDataIsLeftOut) {
  for (const char* name : {"d/a", "d/.millrace/a.index", "d/sub/.millrace/b.index"}) WriteLocal(name, "x");
  ASSERT_EQ(Millrace({"cp", "-r", "--all", "d/", "s3://bucket/d/"}).exit, 0);
  EXPECT_THAT(Keys("s3://bucket/d/"), ElementsAre("d/a"));
  EXPECT_EQ(Millrace({"ls", "-ra", "--json", "s3://bucket/d/"}).objects().size(), 3u);
  EXPECT_EQ(Millrace({"ls", "--json", "s3://bucket/d/"}).objects().size(), 2u) << "a and sub/";
  EXPECT_EQ(Millrace({"ls", "--json", "s3://bucket/d/.millrace/"}).objects().size(), 1u) << "when it is named";
  EXPECT_EQ(Millrace({"cat", "-r", "s3://bucket/d/"}).out, "x");
  EXPECT_EQ(Millrace({"du", "--json", "s3://bucket/d/"}).objects().at(0)["objects"], 1);
  WriteLocal("e/a", "longer");
  EXPECT_EQ(Millrace({"sync", "--delete", "e", "s3://bucket/d"}).exit, 0);
  EXPECT_EQ(Millrace({"sync", "--delete", "s3://bucket/d", "e"}).exit, 0);
  EXPECT_THAT(LocalFiles("e"), ElementsAre("a"));
  EXPECT_EQ(Millrace({"ls", "-ra", "--json", "s3://bucket/d/"}).objects().size(), 3u);
  EXPECT_EQ(Millrace({"rm", "-r", "s3://bucket/d/"}).exit, 0);
  EXPECT_EQ(Millrace({"ls", "-ra", "s3://bucket/d/"}).exit, 4) << "nothing stays behind";
}

TEST_F(ObjectCommands, AMissingBucketIsNamedWithItsCure) {
  Ran ran = Millrace({"head", "s3://absent/a"});
  EXPECT_EQ(ran.exit, 4);
  EXPECT_THAT(ran.err, HasSubstr("millrace mb s3://absent"));
}

}  // namespace
}  // namespace millrace
