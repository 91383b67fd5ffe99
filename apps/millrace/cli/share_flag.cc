#include "apps/millrace/cli/share_flag.h"

#include <fmt/format.h>

#include <cstdlib>

namespace millrace::cli {

void AddShareFlag(CLI::App& command, std::string& share) {
  command.add_option("--share", share,
                     "I/N: do share I (from 0) of the work, beside N-1 other processes; auto: by RANK and WORLD_SIZE");
}

Result<WorkShare> ReadShare(const std::string& share) {
  if (share.empty()) return WorkShare{};
  if (share != "auto") return WorkShare::Parse(share);
  const char* rank = std::getenv("RANK");
  const char* ranks = std::getenv("WORLD_SIZE");
  if (rank == nullptr || ranks == nullptr) {
    return Fail(Code::kInvalidArgument, "--share auto is for the ranks of a job: RANK and WORLD_SIZE are not set");
  }
  return WorkShare::Parse(fmt::format("{}/{}", rank, ranks));
}

}  // namespace millrace::cli
