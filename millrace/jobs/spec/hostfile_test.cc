#include "millrace/jobs/spec/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hostfile, ReadsWhatTheMpiOperatorWrites) {
  const auto open_mpi =
      ParseHostfile("llama-worker-0.llama.ml.svc slots=4\nllama-worker-1.llama.ml.svc slots=4\n", "h");
  ASSERT_TRUE(open_mpi);
  EXPECT_THAT(*open_mpi,
              ElementsAre(HostSlots{"llama-worker-0.llama.ml.svc", 4}, HostSlots{"llama-worker-1.llama.ml.svc", 4}));
  const auto mpich = ParseHostfile("llama-worker-0.llama.ml.svc:2\nllama-worker-1.llama.ml.svc:2\n", "h");
  ASSERT_TRUE(mpich);
  EXPECT_THAT(*mpich,
              ElementsAre(HostSlots{"llama-worker-0.llama.ml.svc", 2}, HostSlots{"llama-worker-1.llama.ml.svc", 2}));
}

TEST(Hostfile, ReadsWhatPeopleWrite) {
  const auto hosts =
      ParseHostfile("# the rack\r\n\n  n1\tslots=8 max_slots=16 # fast\nme@10.0.0.2\nfe80::1\nn1 slots=2\n", "h");
  ASSERT_TRUE(hosts) << hosts.error().ToString();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"n1", 10}, HostSlots{"me@10.0.0.2", 0}, HostSlots{"fe80::1", 0}));
  EXPECT_THAT(*ParseHostfile("n1\nn1\nn1", "h"), ElementsAre(HostSlots{"n1", 3}));
}

TEST(Hostfile, NamesTheLineThatIsWrong) {
  for (const auto& [text, says] :
       {std::pair("n1 slots=2\nn2 slots=two\n", "rack.txt:2: slots=two is not understood"),
        std::pair("n1 cpus=2", "rack.txt:1: cpus=2 is not understood"),
        std::pair("n1:0", "rack.txt:1: n1:0 should be a host and its slots"),
        std::pair("-oProxyCommand=x", "is not a host's name"), std::pair("n1;reboot slots=1", "is not a host's name"),
        std::pair("../n1", "is not a host's name"), std::pair("\n# nobody\n", "rack.txt names no host")}) {
    const auto hosts = ParseHostfile(text, "rack.txt");
    ASSERT_FALSE(hosts) << text;
    EXPECT_EQ(hosts.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(hosts.error().ToString(), HasSubstr(says));
  }
}

}  // namespace
}  // namespace millrace::jobs
