// The options that choose the traced steps of a run. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::train {

struct ProfileOptions {
  std::uint64_t first_step = 1, last_step = 1;  ///< counted from 1; both are traced
  std::string url;                              ///< the folder of the run
  std::string job;                              ///< its name, for the file
  bool operator==(const ProfileOptions&) const = default;
};

}  // namespace millrace::train
