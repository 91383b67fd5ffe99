#include "millrace/jobs/launchers/ssh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

const SshAccess kAccess = {.options = {"-p2222", "-oConnectTimeout=3"}, .millrace = "/opt/it's/millrace"};

TEST(Ssh, TheUsersOptionsComeFirstAndTheHostCannotBeAnOption) {
  const auto command = SshCommand("n1", kAccess);
  EXPECT_EQ(command[0], "ssh");
  EXPECT_EQ(command[1], "-p2222");
  EXPECT_EQ(command[2], "-oConnectTimeout=3");  // of an option that comes twice, ssh takes the first
  EXPECT_THAT(command, testing::Contains("-oBatchMode=yes"));
  EXPECT_EQ(command[command.size() - 3], "--");
  EXPECT_EQ(command[command.size() - 2], "n1");
  EXPECT_EQ(command.back(), R"(exec '/opt/it'\''s/millrace' job agent)");
}

TEST(Ssh, SaysWhatToDoAboutEachFailure) {
  struct Case {
    int status;
    const char* words;
    Code code;
    const char* says;
  };
  const RemoteNode node{.name = "n1", .address = "10.0.0.1"};
  for (const auto& [status, words, code, says] :
       {Case{255, "ssh: connect to host n1 port 22: Connection refused", Code::kUnavailable, "Connection refused"},
        Case{255, "ssh: Could not resolve hostname n1: Name or service not known", Code::kUnavailable, "resolve"},
        Case{255, "Connection to n1 closed by remote host.", Code::kUnavailable, "closed by remote host"},
        Case{255, "Host key verification failed.", Code::kPermissionDenied, "`ssh n1`"},
        Case{255, "@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\n1\n2\nHost key verification failed.",
             Code::kPermissionDenied, "ssh-keygen -R n1"},
        Case{255, "me@n1: Permission denied (publickey).", Code::kPermissionDenied, "ssh-copy-id n1"},
        Case{255, "command-line: line 0: Bad configuration option: speed", Code::kInvalidArgument, "run.ssh_options"},
        Case{127, "bash: line 1: /opt/it's/millrace: No such file", Code::kNotFound, "run.millrace_path"}}) {
    const Error error = ExplainSshEnd(node, {.exit_code = status}, words, kAccess);
    EXPECT_EQ(error.code(), code) << words;
    EXPECT_THAT(error.ToString(), testing::AllOf(HasSubstr("node n1"), HasSubstr(says)));
  }
  EXPECT_EQ(ExplainSshEnd(node, {.signal = 9}, "", kAccess).code(), Code::kUnavailable);
}

TEST(Ssh, PassesCredentialsOnAndNotTheWholeEnvironment) {
  ::setenv("AWS_SESSION_TOKEN", "a token", 1);
  ::setenv("https_proxy", "http://proxy:3128", 1);
  ::setenv("MILLRACE_STATE_DIR", "/home/me", 1);
  const auto env = EnvironmentOfRanks();
  EXPECT_EQ(env.at("AWS_SESSION_TOKEN"), "a token");
  EXPECT_EQ(env.at("https_proxy"), "http://proxy:3128");
  EXPECT_FALSE(env.contains("PATH"));
  EXPECT_FALSE(env.contains("MILLRACE_STATE_DIR"));
}

}  // namespace
}  // namespace millrace::jobs
