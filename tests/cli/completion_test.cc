// Completion of commands, flags and URLs in bash, zsh and fish. The tests of zsh and fish need these shells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/process/subprocess.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::Ran;

class Completion : public ObjectFixture {
 protected:
  bool HasShell(const std::string& shell) { return program_.Shell("command -v " + shell).exit == 0; }

  /// Returns what fish offers for a line, one candidate a line: the word, a tab and its description.
  std::vector<std::string> Fish(const std::string& line) {
    return program_.Shell("fish --no-config -c 'millrace completion fish | source; complete -C \"" + line + "\"'")
        .lines();
  }

  /// Types a line and the Tab key into an interactive zsh. Succeeds once the terminal shows `expected`.
  Ran Zsh(const std::string& setup, const std::string& line, const std::string& expected) {
    WriteLocal("tab.zsh",
               "zmodload zsh/zpty\n"
               "zpty shell TERM=xterm zsh -f -i\n"
               "zpty -w shell 'PROMPT=; unsetopt prompt_sp; " +
                   setup +
                   "; print set-\"\"up'\n"
                   "zpty -r -m shell shown '*set-up*' || exit 1\n"
                   "zpty -w -n shell $'" +
                   line +
                   "\\t'\n"
                   "zpty -r -m shell shown '*" +
                   expected + "*' || exit 1\n");
    return program_.Shell("timeout 60 zsh -f tab.zsh");
  }
};

TEST_F(Completion, UrlsAreCompleted) {
  WriteLocal("a", "a");
  ASSERT_EQ(Millrace({"cp", "a", "s3://bucket/folder/a"}).exit, 0);
  EXPECT_THAT(Millrace({"complete-url", "s3://bu"}).lines(), ElementsAre("s3://bucket/"));
  EXPECT_THAT(Millrace({"complete-url", "s3://bucket/fo"}).lines(), ElementsAre("s3://bucket/folder/"));
  EXPECT_THAT(Millrace({"complete-url", "s3://bucket/folder/"}).lines(), ElementsAre("s3://bucket/folder/a"));
  Ran absent = Millrace({"complete-url", "s3://absent/"});
  EXPECT_EQ(absent.exit, 0);
  EXPECT_EQ(absent.out + absent.err, "");
  Ran bash = program_.Shell(
      "source <(millrace completion bash); COMP_LINE='millrace cp s3://bucket/fo'; COMP_POINT=${#COMP_LINE}; "
      "COMP_WORDS=(millrace cp s3 : //bucket/fo); COMP_CWORD=4; COMP_WORDBREAKS=:; _millrace; echo "
      "\"${COMPREPLY[@]}\"");
  EXPECT_EQ(bash.out, "//bucket/folder/\n") << bash.err;
}

TEST_F(Completion, ScriptsKnowTheCommands) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    Ran ran = Millrace({"completion", shell});
    EXPECT_EQ(ran.exit, 0);
    EXPECT_THAT(ran.out, HasSubstr("sync"));
    EXPECT_THAT(ran.out, HasSubstr("endpoint-url"));
  }
  std::ofstream(work() / "complete.sh") << Millrace({"completion", "bash"}).out
                                        << "COMP_WORDS=(millrace cp --rec); COMP_CWORD=2; _millrace\n"
                                        << "[ \"${COMPREPLY[*]}\" = --recursive ]\n";
  auto bash = Subprocess::Run({.argv = {"bash", "complete.sh"}, .working_directory = work()});
  ASSERT_TRUE(bash);
  EXPECT_TRUE(bash->state.ok());
  EXPECT_EQ(Millrace({"completion", "tcsh"}).exit, 2);
}

TEST_F(Completion, ValuesAndJobsAreCompleted) {
  std::filesystem::create_directories(work() / "state/jobs/llama-demo");
  const std::string bash =
      "export MILLRACE_STATE_DIR=$PWD/state; source <(millrace completion bash); COMP_LINE=; COMP_POINT=0\n"
      "tab() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _millrace; echo \"${COMPREPLY[*]}\"; }\n";
  EXPECT_EQ(program_.Shell(bash + "tab millrace cp --sse A").out, "AES256\n");
  EXPECT_EQ(program_.Shell(bash + "tab millrace ckpt gc --mode m").out, "min max\n");
  EXPECT_EQ(program_.Shell(bash + "tab millrace --progress o").out, "on off\n");
  EXPECT_EQ(program_.Shell(bash + "tab millrace job status lla").out, "llama-demo\n");
}

TEST_F(Completion, FishCompletesByCommand) {
  if (!HasShell("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_THAT(Fish("millrace sy"), ElementsAre(StartsWith("sync\t")));
  EXPECT_THAT(Fish("millrace --region eu-1 ckpt ver"), ElementsAre(StartsWith("verify\t")));
  EXPECT_THAT(Fish("millrace cp --rec"), Contains(StartsWith("--recursive\t")));
  EXPECT_THAT(Fish("millrace cp --endpoint"), Contains(StartsWith("--endpoint-url\t")));
  // `ls` is a command, and a command of `uploads`: each has flags of its own.
  EXPECT_THAT(Fish("millrace ls --"), Not(Contains(StartsWith("--older-than"))));
  EXPECT_THAT(Fish("millrace uploads ls --"), Contains(StartsWith("--older-than\t")));
  EXPECT_THAT(Fish("millrace uploads ls --"), Not(Contains(StartsWith("--human-readable"))));
  WriteLocal("a", "a");
  ASSERT_EQ(Millrace({"cp", "a", "s3://bucket/folder/a"}).exit, 0);
  EXPECT_THAT(Fish("millrace cp s3://bucket/fo"), ElementsAre("s3://bucket/folder/"));
}

TEST_F(Completion, ZshCompletesAfterSource) {
  if (!HasShell("zsh")) GTEST_SKIP() << "zsh is not installed";
  const std::string setup = "source <(millrace completion zsh)";
  EXPECT_EQ(Zsh(setup, "millrace sy", "millrace sync").exit, 0);
  EXPECT_EQ(Zsh(setup, "millrace cp --recu", "--recursive").exit, 0);
  EXPECT_EQ(Zsh(setup, "millrace uploads ls --ol", "--older-than").exit, 0);
  WriteLocal("a", "a");
  ASSERT_EQ(Millrace({"cp", "a", "s3://bucket/folder/a"}).exit, 0);
  EXPECT_EQ(Zsh(setup, "millrace cp s3://bucket/fo", "s3://bucket/folder/").exit, 0);
}

TEST_F(Completion, ZshCompletesAtTheFirstTabAfterInstallation) {
  if (!HasShell("zsh")) GTEST_SKIP() << "zsh is not installed";
  WriteLocal("functions/_millrace", Millrace({"completion", "zsh"}).out);
  const std::string setup =
      "fpath=(" + (work() / "functions").string() + " $fpath); autoload -Uz compinit; compinit -u -D";
  EXPECT_EQ(Zsh(setup, "millrace sy", "millrace sync").exit, 0);
}

}  // namespace
}  // namespace millrace
