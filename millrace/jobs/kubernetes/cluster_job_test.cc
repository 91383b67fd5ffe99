// A cluster's API that answers from objects of the test, and what Millrace makes of them.
#include "millrace/jobs/kubernetes/cluster_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "millrace/base/threads/sync.h"
#include "millrace/http/testing/scripted_server.h"

namespace millrace::jobs {
namespace {

using http::testing::ScriptedServer;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Answer(int status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

class ClusterJobTest : public testing::Test {
 protected:
  ScriptedServer::Reply Reply(const ScriptedServer::Seen& seen) {
    const std::string path = seen.target.substr(0, seen.target.find('?'));
    if (failures_ > 0) {
      --failures_;
      return {Answer(503, "{\"message\": \"starting\"}")};
    }
    if (seen.method == "PATCH" && refused_ == path) return {Answer(422, R"({"message": "metadata.x: Invalid value"})")};
    if (seen.method == "PATCH") {
      Json object = seen.body.empty() ? Json::object() : *ParseJson(seen.body, "a patch");
      if (seen.headers.Get("Content-Type") == "application/merge-patch+json") {
        Json merged = objects_[path];
        merged.merge_patch(object);
        object = merged;
      }
      object["metadata"]["uid"] = "uid-of-" + path;
      objects_[path] = object;
      return {Answer(200, DumpJson(object))};
    }
    if (seen.method == "DELETE") {
      objects_.erase(path);
      return {Answer(200, "{}")};
    }
    if (path.ends_with("/log")) {
      asked_ = seen.target;
      return {Answer(200, log_)};
    }
    if (path.ends_with("/pods")) return {Answer(200, DumpJson({{"items", pods_}}))};
    if (path.ends_with("/events")) return {Answer(200, DumpJson({{"items", events_}}))};
    const auto found = objects_.find(path);
    if (found == objects_.end()) return {Answer(404, "{}")};
    return {Answer(200, DumpJson(found->second))};
  }

  ClusterApi Api() { return ClusterApi({.name = "tested", .server = server_.url(), .token = "t0ken"}); }
  static Json Pod(const std::string& index, const std::string& phase) {
    return {{"metadata",
             {{"name", "j-" + index + "-x"},
              {"uid", "uid" + index},
              {"creationTimestamp", "2026-01-01T00:00:00Z"},
              {"labels", {{"batch.kubernetes.io/job-completion-index", index}}}}},
            {"status", {{"phase", phase}}}};
  }
  static Json Named(const std::string& name) { return {{"name", name}, {"labels", {{kJobNameLabel, "j"}}}}; }
  ClusterJob Find() {
    ClusterApi api = Api();
    const auto found = FindClusterJob(api, job_);
    EXPECT_TRUE(found) << found.error().ToString();
    return *found;
  }
  std::string Read(const std::string& name) { return ReadFile(folder_.path() / name).value_or(""); }
  CollectedLog Collect() {
    ClusterApi api = Api();
    const auto news =
        CollectLog(api, job_, {.supervisor_pod = "j-0-x", .has_log = true, .supervisor_uid = "uid0"}, folder_.path());
    EXPECT_TRUE(news) << news.error().ToString();
    return *news;
  }

  const ClusterJobName job_{.launcher = "kubernetes", .context = "c", .space = "space", .name = "j"};
  const std::string path_ = "/apis/batch/v1/namespaces/space/jobs/j";
  const TempDir folder_ = *TempDir::Create();
  std::map<std::string, Json> objects_;
  Json pods_ = Json::array(), events_ = Json::array();
  std::string log_, asked_, refused_;
  int failures_ = 0;
  ScriptedServer server_{[this](const ScriptedServer::Seen& seen) { return Reply(seen); }};
};

TEST_F(ClusterJobTest, TellsWhyAJobWaits) {
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kGone);
  objects_[path_] = {{"spec", {{"suspend", false}}}};
  events_.push_back({{"lastTimestamp", "2"}, {"message", "exceeded quota"}});
  events_.push_back({{"lastTimestamp", "1"}, {"message", "older"}});
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kWaits);
  EXPECT_EQ(Find().reason, "exceeded quota");

  Json waits = Pod("0", "Pending");
  waits["status"]["conditions"] = Json::array(
      {{{"type", "PodScheduled"}, {"status", "False"}, {"message", "0/3 nodes are available: 3 Insufficient cpu."}}});
  pods_ = Json::array({waits});
  EXPECT_EQ(Find().reason, "pod j-0-x waits: 0/3 nodes are available: 3 Insufficient cpu.");

  Json pulls = Pod("1", "Pending");
  pulls["status"]["containerStatuses"] =
      Json::array({{{"state", {{"waiting", {{"reason", "ErrImagePull"}, {"message", "no such image"}}}}}}});
  pods_ = Json::array({Pod("0", "Running"), pulls});
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kRuns);
  EXPECT_EQ(Find().reason, "pod j-1-x waits: ErrImagePull: no such image");
  EXPECT_EQ(Find().supervisor_pod, "j-0-x");
}

TEST_F(ClusterJobTest, TellsHowAJobEnded) {
  objects_[path_] = {{"spec", {{"suspend", true}}}};
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kHeld);
  pods_ = Json::array({Pod("0", "Running")});
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kLeaves);
  objects_[path_]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  objects_[path_]["spec"]["suspend"] = false;
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kLeaves);
  objects_[path_]["status"]["conditions"] =
      Json::array({{{"type", "Failed"}, {"status", "True"}, {"message", "exit code 1 at index 0"}}});
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kFailed);
  EXPECT_EQ(Find().reason, "exit code 1 at index 0");
  pods_[0]["status"]["containerStatuses"] =
      Json::array({{{"state", {{"terminated", {{"message", "words\nmillrace: no such bucket\n"}}}}}}});
  EXPECT_EQ(Find().reason, "no such bucket");
  objects_[path_]["status"]["conditions"][0] = {{"type", "Complete"}, {"status", "True"}};
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kDone);
}

TEST_F(ClusterJobTest, TakesTheSupervisorsLogApartOnce) {
  std::filesystem::create_directory(folder_.path() / "logs");
  const JobStatus status{.name = "j", .state = "running", .step = 3};
  log_ =
      "2026-01-01T00:00:01.000000001Z [rank 0] {\"step\": 1}\n"
      "2026-01-01T00:00:01.000000002Z [rank 1!] a warning\n"
      "2026-01-01T00:00:01.000000003Z [supervisor] 2 ranks started\n"
      "2026-01-01T00:00:01.000000004Z " +
      StatusLine(status) +
      "\n"
      "2026-01-01T00:00:01.000000005Z words of a library\n"
      "2026-01-01T00:00:01.000000006Z [rank 0] [status] {}\n"
      "2026-01-01T00:00:01.000000007Z [rank ../../x] y\n";
  CollectedLog news = Collect();
  EXPECT_TRUE(news.of_new_pod);
  ASSERT_TRUE(news.status);
  EXPECT_EQ(*news.status, status);
  EXPECT_EQ(Read("logs/rank-0.out"), "{\"step\": 1}\n[status] {}\n");
  EXPECT_EQ(Read("logs/rank-1.err"), "a warning\n");
  EXPECT_EQ(Read("logs/supervisor.log"), "2 ranks started\nwords of a library\n");

  log_ += "2026-01-01T00:00:01.000000008Z [rank 0] {\"step\": 2}\n";
  news = Collect();
  EXPECT_THAT(asked_, HasSubstr("sinceTime=2026-01-01T00%3A00%3A01.000000007Z"));
  EXPECT_FALSE(news.of_new_pod || news.status);
  EXPECT_EQ(Read("logs/rank-0.out"), "{\"step\": 1}\n[status] {}\n{\"step\": 2}\n");
}

TEST_F(ClusterJobTest, MakesAJobWithWhatBelongsToItAndThenLetsItStart) {
  const std::vector<ClusterObject> objects = {
      {"/apis/batch/v1/namespaces/space/jobs",
       {{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", Named("j")}, {"spec", {{"suspend", true}}}}},
      {"/api/v1/namespaces/space/secrets", {{"metadata", Named("j-agents")}}}};
  ClusterApi api = Api();
  failures_ = 2;  // an API server that hiccups
  const Status created = CreateClusterJob(api, job_, objects, false);
  ASSERT_TRUE(created) << created.error().ToString();
  EXPECT_EQ(objects_[path_]["spec"]["suspend"], false);
  const Json& owner = objects_["/api/v1/namespaces/space/secrets/j-agents"]["metadata"]["ownerReferences"][0];
  EXPECT_EQ(owner["uid"], "uid-of-" + path_);
  EXPECT_EQ(server_.seen().back().headers.Get("Authorization"), "Bearer t0ken");

  EXPECT_EQ(CreateClusterJob(api, job_, objects, false).error().code(), Code::kBusy);
  // One that has ended is replaced.
  objects_[path_]["status"]["conditions"] = Json::array({{{"type", "Complete"}, {"status", "True"}}});
  ASSERT_TRUE(CreateClusterJob(api, job_, objects, true));
  EXPECT_EQ(objects_[path_]["spec"]["suspend"], true);  // a queue lets it start
}

TEST_F(ClusterJobTest, AQueuedJobIsDeletedWhenItIsStopped) {
  objects_[path_] = {{"spec", {{"suspend", false}}}};
  ClusterApi api = Api();
  ASSERT_TRUE(StopClusterJob(api, job_, Find()));
  EXPECT_EQ(objects_[path_]["spec"]["suspend"], true);
  // Kueue would let a suspended job start again.
  objects_[path_]["metadata"]["labels"] = {{"kueue.x-k8s.io/queue-name", "team"}};
  ASSERT_TRUE(StopClusterJob(api, job_, Find()));
  EXPECT_FALSE(objects_.contains(path_));
  EXPECT_THAT(server_.seen().back().target, HasSubstr("propagationPolicy=Foreground"));
}

TEST_F(ClusterJobTest, TellsWhyAJobIsStillInItsQueue) {
  const std::string group = "/apis/kueue.x-k8s.io";
  objects_[path_] = {{"metadata", {{"uid", "u1"}, {"labels", {{"kueue.x-k8s.io/queue-name", "team"}}}}},
                     {"spec", {{"suspend", true}}}};
  EXPECT_EQ(Find().phase, ClusterJob::Phase::kHeld);
  EXPECT_THAT(Find().reason, HasSubstr("no Kueue"));
  objects_[group] = {{"preferredVersion", {{"version", "v9"}}}};
  EXPECT_EQ(Find().reason, "");  // Kueue has not seen it yet
  objects_[group + "/v9/namespaces/space/workloads"] = {
      {"items",
       Json::array({{{"status",
                      {{"conditions", Json::array({{{"type", "Evicted"}, {"status", "True"}, {"message", "x"}},
                                                   {{"type", "QuotaReserved"},
                                                    {"status", "False"},
                                                    {"message", "insufficient unused quota for cpu"}}})}}}}})}};
  EXPECT_EQ(Find().reason, "insufficient unused quota for cpu");
  EXPECT_THAT(server_.seen().back().target, HasSubstr("job-uid%3Du1"));
  JobStatus status;
  ApplyClusterState(status, job_, Find(), /*stop_requested=*/false);
  EXPECT_EQ(status.message, "j of namespace space waits in its queue: insufficient unused quota for cpu");
}

TEST_F(ClusterJobTest, ObjectsOfOthersAreLeftAsTheyAre) {
  const std::string secret = "/api/v1/namespaces/space/secrets/j-agents";
  const std::vector<ClusterObject> objects = {
      {"/apis/batch/v1/namespaces/space/jobs", {{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", Named("j")}}},
      {"/api/v1/namespaces/space/secrets", {{"metadata", Named("j-agents")}}}};
  ClusterApi api = Api();
  for (const std::string& taken : {secret, path_}) {
    // Even a Job that has ended.
    objects_ = {{taken, {{"status", {{"conditions", Json::array({{{"type", "Complete"}, {"status", "True"}}})}}}}}};
    const std::map<std::string, Json> before = objects_;
    const Status created = CreateClusterJob(api, job_, objects, false);
    ASSERT_FALSE(created);
    EXPECT_THAT(created.error().ToString(), AllOf(HasSubstr(taken), HasSubstr("another name")));
    EXPECT_EQ(objects_, before);
  }
}

TEST_F(ClusterJobTest, NothingStaysIfAStepFails) {
  const std::vector<ClusterObject> objects = {
      {"/apis/batch/v1/namespaces/space/jobs", {{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", Named("j")}}},
      {"/api/v1/namespaces/space/secrets", {{"metadata", Named("j-agents")}}}};
  refused_ = "/api/v1/namespaces/space/secrets/j-agents";
  ClusterApi api = Api();
  const Status created = CreateClusterJob(api, job_, objects, false);
  EXPECT_EQ(created.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(created.error().ToString(), HasSubstr("metadata.x: Invalid value"));
  EXPECT_TRUE(objects_.empty());
}

TEST(ClusterJobName, ContextsMayHaveSlashes) {
  const auto job = ClusterJobName::Parse("kubernetes", "arn:aws:eks:eu:1:cluster/prod/space/j");
  ASSERT_TRUE(job);
  EXPECT_EQ(job->context, "arn:aws:eks:eu:1:cluster/prod");
  EXPECT_EQ(job->space, "space");
  EXPECT_EQ(job->name, "j");
  EXPECT_FALSE(ClusterJobName::Parse("kubernetes", "x/y"));
}

class JudgeTest : public testing::Test {
 protected:
  std::string After(std::string state, ClusterJob::Phase phase, bool stop_requested = false) {
    JobStatus status{.name = "j", .state = std::move(state), .message = "last words"};
    ApplyClusterState(status, {.space = "s", .name = "j"},
                      {.phase = phase, .reason = "no nodes", .supervisor_pod = "p"}, stop_requested);
    return fmt::format("{}: {}", status.state, status.message);
  }
};

TEST_F(JudgeTest, TheClusterKnowsWhatTheSupervisorCannotSay) {
  using Phase = ClusterJob::Phase;
  EXPECT_EQ(After("running", Phase::kRuns), "running: last words");
  EXPECT_EQ(After("queued", Phase::kRuns), "starting: no nodes");
  EXPECT_EQ(After("restarting", Phase::kRuns), "restarting: no nodes");
  EXPECT_THAT(After("interrupted", Phase::kWaits), AllOf(HasSubstr("queued"), HasSubstr("no nodes")));
  EXPECT_THAT(After("running", Phase::kGone), AllOf(HasSubstr("lost"), HasSubstr("last words")));
  EXPECT_EQ(After("done", Phase::kGone), "done: last words");
  EXPECT_THAT(After("running", Phase::kGone, true), HasSubstr("interrupted"));
  EXPECT_THAT(After("running", Phase::kHeld, true), HasSubstr("interrupted"));
  EXPECT_THAT(After("running", Phase::kHeld, false), AllOf(HasSubstr("queued"), HasSubstr("suspended")));
  EXPECT_THAT(After("running", Phase::kLeaves), HasSubstr("stopping"));
  EXPECT_THAT(After("interrupted", Phase::kLeaves, true), HasSubstr("interrupted"));
  EXPECT_THAT(After("running", Phase::kFailed), HasSubstr("failed: no nodes"));
  EXPECT_EQ(After("failed", Phase::kFailed), "failed: last words");
}

}  // namespace
}  // namespace millrace::jobs
