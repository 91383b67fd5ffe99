// Tests of the checks that `millrace train` and `millrace doctor` do before any rank starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/http/server/server.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::Ran;

constexpr std::string_view kJobFile = R"(name: checked
data:
  sources: [{url: "s3://corpus/*.jsonl"}]
  tokenizer: s3://corpus/tokenizer.model
train: {steps: 3}
checkpoint: {url: "s3://runs/checked"}
log: {tensorboard: "s3://runs/checked/tb"}
)";

class JobChecksTest : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (const char* bucket : {"corpus", "runs"}) ASSERT_TRUE(server_->CreateBucket(bucket));
    const char* source = std::getenv("MILLRACE_SOURCE");
    const fs::path testdata = fs::path(source != nullptr ? source : ".") / "millrace/train/testdata";
    program_.Write("job.yaml", kJobFile);
    program_.Write("corpus.jsonl", "{\"text\": \"the mill race turns\"}\n");
    ASSERT_EQ(program_.Run({"cp", "corpus.jsonl", "s3://corpus/"}).exit, 0);
    ASSERT_EQ(program_.Run({"cp", (testdata / "tokenizer.model").string(), "s3://corpus/"}).exit, 0);
  }
  /// A rank that a test starts by mistake is found out: it leaves a file.
  Ran Train(std::vector<std::string> more, const std::map<std::string, std::string>& env = {}) {
    program_.Write("rank.sh", "#!/bin/sh\n: >" + (program_.folder() / "started").string() + "\n");
    fs::permissions(program_.folder() / "rank.sh", fs::perms::owner_all);
    std::vector<std::string> arguments = {"train", "job.yaml", "--program", (program_.folder() / "rank.sh").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return program_.Run(std::move(arguments), env);
  }
  bool started() const { return fs::exists(program_.folder() / "started"); }
  std::string Levels(const Ran& ran) {
    std::string levels;
    for (const Json& finding : ran.objects())
      levels += fmt::format("{}={} ", finding.value("check", "?"), finding.value("level", "?"));
    return levels;
  }
};

TEST_F(JobChecksTest, ADryRunLooksAtAllThatAJobNeedsAndLeavesNothing) {
  const Ran ran = Train({"--dry-run", "--json"});
  EXPECT_EQ(ran.exit, 0) << ran.out << ran.err;
  EXPECT_EQ(Levels(ran), "program=ok data=ok tokenizer=ok checkpoints=ok memory=ok tensorboard=ok ");
  EXPECT_THAT(ran.out, AllOf(HasSubstr("1 object, "), HasSubstr("300 pieces")));
  EXPECT_TRUE(program_.Run({"ls", "-r", "s3://runs/"}).out.empty());
  EXPECT_FALSE(started());
}

TEST_F(JobChecksTest, WhatIsMissingIsSaidBeforeARankStarts) {
  const std::vector<std::string> set = {"--set", "checkpoint.url=s3://nowhere/run"};
  const Ran dry = Train({"--dry-run", set[0], set[1]});
  EXPECT_EQ(dry.exit, 1);
  EXPECT_THAT(dry.out, AllOf(HasSubstr("fail  checkpoints"), HasSubstr("millrace mb"), HasSubstr("ok    tokenizer")));
  const Ran ran = Train(set);
  EXPECT_EQ(ran.exit, 4);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("no rank was started"), HasSubstr("checkpoints: "), HasSubstr("millrace mb")));
  EXPECT_FALSE(started());
  EXPECT_EQ(Train({set[0], set[1], "--no-check"}).exit, 0);
  EXPECT_TRUE(started());
}

TEST_F(JobChecksTest, SourcesOfEvaluationAreCheckedToo) {
  const auto with = [&](std::string_view url) {
    return Train({"--dry-run", "--set", fmt::format("eval={{every_steps: 5, sources: [{{url: \"{}\"}}]}}", url)});
  };
  EXPECT_THAT(with("s3://corpus/*.jsonl").out, HasSubstr("ok    eval data"));
  const Ran none = with("s3://corpus/none.jsonl");
  EXPECT_EQ(none.exit, 1);
  EXPECT_THAT(none.out, AllOf(HasSubstr("fail  eval data"), HasSubstr("check eval.sources"), HasSubstr("ok    data")));
}

TEST_F(JobChecksTest, AModelIsAFolderOrAFile) {
  ASSERT_EQ(program_.Run({"cp", "corpus.jsonl", "s3://corpus/folder/"}).exit, 0);
  ASSERT_EQ(program_.Run({"cp", "corpus.jsonl", "s3://corpus/m.gguf"}).exit, 0);
  for (const char* there : {"s3://corpus/folder", "s3://corpus/folder/", "s3://corpus/m.gguf"}) {
    EXPECT_THAT(Train({"--dry-run", "--set", fmt::format("model.from={}", there)}).out, HasSubstr("ok    model"))
        << there;
  }
  for (const char* absent : {"s3://corpus/none", "s3://corpus/m.gguf/", "s3://corpus/none.gguf"}) {
    const Ran none = Train({"--dry-run", "--set", fmt::format("model.from={}", absent)});
    EXPECT_EQ(none.exit, 1) << absent;
    EXPECT_THAT(none.out, AllOf(HasSubstr("fail  model"), HasSubstr("there is nothing at"))) << absent;
  }
}

TEST_F(JobChecksTest, WhatRunsBesideARankIsCheckedToo) {
  program_.Write("lib/wandb/__init__.py", "raise SystemExit('it is not loaded')\n");
  program_.Write("hooks.py", "def on_step(step): pass\n");
  const std::string hooks = (program_.folder() / "hooks.py").string();
  const std::string lib = (program_.folder() / "lib").string();
  const auto with = [&](std::string_view log, std::string_view path) {
    return Train({"--dry-run", "--set", fmt::format("log={{{}}}", log), "--set",
                  fmt::format("run.env={{PYTHONPATH: \"{}\", PYTHONNOUSERSITE: \"1\"}}", path)});
  };
  const Ran fine = with(fmt::format("wandb: {{}}, callbacks: \"{}\"", hooks), lib);
  EXPECT_EQ(fine.exit, 0) << fine.out << fine.err;
  EXPECT_THAT(fine.out, AllOf(HasSubstr("ok    wandb"), HasSubstr("ok    callbacks")));
  // A folder of the name is no package.
  program_.Write("empty/wandb/run.txt", "a record\n");
  const Ran none = with("wandb: {}", (program_.folder() / "empty").string());
  EXPECT_EQ(none.exit, 1);
  EXPECT_THAT(none.out, AllOf(HasSubstr("fail  wandb"), HasSubstr("python3 -m pip install wandb")));
  EXPECT_THAT(with("wandb: {}, python: no-such-python", lib).out, HasSubstr("fail  python"));
  EXPECT_THAT(with("callbacks: /nonexistent/hooks.py", lib).out, HasSubstr("fail  callbacks"));
}

TEST_F(JobChecksTest, TheCureIsThatOfWhatIsMissing) {
  const Ran none = Train({"--dry-run", "--set", "data.tokenizer=s3://corpus/none.model"});
  EXPECT_EQ(none.exit, 1);
  EXPECT_THAT(none.out, HasSubstr("make one with `millrace tokenizer train`"));
  for (const char* url : {"s3://nowhere/t.model", "s3://nowhere/"}) {
    const Ran bucket = Train({"--dry-run", "--set", std::string("data.tokenizer=") + url});
    EXPECT_EQ(bucket.exit, 1);
    EXPECT_THAT(bucket.out, AllOf(Not(HasSubstr("tokenizer train")), HasSubstr("millrace mb")));
  }
}

TEST_F(JobChecksTest, PlansAndTrainingOpenTheSameTokenizers) {
  // A model's folder, with the shortest safetensors file that has a tensor.
  const std::string header = R"({"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  program_.Write("model.safetensors",
                 std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "x");
  ASSERT_EQ(program_.Run({"cp", "model.safetensors", "s3://corpus/model/"}).exit, 0);
  ASSERT_EQ(program_.Run({"cp", "s3://corpus/tokenizer.model", "s3://corpus/model/"}).exit, 0);
  ASSERT_EQ(program_.Run({"cp", "s3://corpus/tokenizer.model", "here.model"}).exit, 0);
  const std::string local = (program_.folder() / "here.model").string();
  for (const std::string& url : {std::string("s3://corpus/model"), std::string("s3://corpus/model/"), local}) {
    const std::string set = "data.tokenizer=" + url;
    EXPECT_EQ(Train({"--dry-run", "--set", set}).exit, 0) << url;
    const Ran plan = program_.Run({"data", "plan", "job.yaml", "--sequence-length", "4", "--set", set});
    EXPECT_EQ(plan.exit, 0) << url << ": " << plan.err;
  }
  const std::string none = "data.tokenizer=s3://corpus/none";
  const std::string message = "there is no tokenizer at s3://corpus/none, nor a model that has one";
  EXPECT_THAT(Train({"--dry-run", "--set", none}).out, HasSubstr(message));
  EXPECT_THAT(program_.Run({"data", "plan", "job.yaml", "--set", none}).err, HasSubstr(message));
}

TEST_F(JobChecksTest, AWrongSecretIsToldByTrainAndDoctor) {
  const std::map<std::string, std::string> wrong = {{"AWS_SECRET_ACCESS_KEY", "another"}};
  const Ran train = Train({}, wrong);
  EXPECT_EQ(train.exit, 5);
  EXPECT_THAT(train.err, HasSubstr("check the secret key"));
  EXPECT_FALSE(started());
  const Ran doctor = program_.Run({"doctor"}, wrong);
  EXPECT_EQ(doctor.exit, 1);
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("fail  signature"), HasSubstr("AWS_SECRET_ACCESS_KEY")));
  EXPECT_THAT(program_.Run({"doctor"}).out, HasSubstr("ok    signature    the endpoint accepts the keys"));
}

TEST_F(JobChecksTest, AMachineThatIsUnfitStartsNoRank) {
  const std::map<std::string, std::string> unfit = {{"TMPDIR", "/nothing"}};
  const Ran ran = Train({}, unfit);
  EXPECT_NE(ran.exit, 0);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("disk: /nothing cannot be used"), HasSubstr("set TMPDIR")));
  EXPECT_FALSE(started());
  EXPECT_EQ(Train({"--set", "run.health_checks=[memory]"}, unfit).exit, 0);
  EXPECT_TRUE(started());
}

TEST_F(JobChecksTest, DoctorTellsWhetherThisMachineIsFitForRanks) {
  const Ran fit = program_.Run({"doctor", "--node", "--json", "s3://corpus"});
  EXPECT_EQ(fit.exit, 0) << fit.out;
  EXPECT_THAT(Levels(fit), AllOf(HasSubstr("clock=ok"), HasSubstr("disk="), HasSubstr("memory="),
                                 HasSubstr("network=ok"), HasSubstr("cpu=ok"), HasSubstr("shm="), HasSubstr("gpu=")));
  const Ran unfit =
      program_.Run({"doctor", "--node"}, {{"AWS_ENDPOINT_URL", "http://127.0.0.1:1"}, {"TMPDIR", "/nothing"}});
  EXPECT_EQ(unfit.exit, 1);
  EXPECT_THAT(unfit.out, AllOf(HasSubstr("fail  disk         /nothing cannot be used"), HasSubstr("-> set TMPDIR"),
                               HasSubstr("fail  network      http://127.0.0.1:1/ does not answer")));
}

TEST_F(JobChecksTest, AnEndpointThatIsAwayDoesNotKeepAJobFromStarting) {
  const std::map<std::string, std::string> away = {{"AWS_ENDPOINT_URL", "http://127.0.0.1:1"}};
  const Ran dry = Train({"--dry-run"}, away);
  EXPECT_EQ(dry.exit, 1);
  EXPECT_THAT(dry.out, HasSubstr("not checked: the store does not answer"));
  const Ran ran = Train({}, away);
  EXPECT_EQ(ran.exit, 0);
  EXPECT_THAT(ran.err, HasSubstr("127.0.0.1:1"));
  EXPECT_TRUE(started());
}

/// An endpoint that refuses every signed request with one of S3's errors.
TEST_F(JobChecksTest, DoctorKnowsRefusalsByTheirCodes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"<Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region>", "--region eu-north-1"},
      {"<Code>RequestTimeTooSkewed</Code>", "set this machine's clock"},
      {"<Code>InvalidAccessKeyId</Code>", "AWS_ACCESS_KEY_ID"},
      {"<Code>ExpiredToken</Code>", "sign in again"},
      {"<Code>AccessDenied</Code>", "they may not list buckets"}};
  for (const auto& [error, advice] : cases) {
    auto refusing = http::Server::Start(
        {.listen = "127.0.0.1:0"}, [&](http::ServerRequest& request, http::ServerResponse& response) {
          const std::string body = "<Error>" + error + "</Error>";
          std::ignore = response.Send(403, {}, request.method() == "HEAD" ? ByteSpan() : AsBytes(body));
        });
    ASSERT_TRUE(refusing) << refusing.error().ToString();
    const std::string endpoint = fmt::format("http://127.0.0.1:{}", (*refusing)->port());
    EXPECT_THAT(program_.Run({"doctor"}, {{"AWS_ENDPOINT_URL", endpoint}}).out, HasSubstr(advice)) << error;
  }
}

}  // namespace
}  // namespace millrace
