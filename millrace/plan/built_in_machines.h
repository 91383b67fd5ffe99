// The machine descriptions of docs/machines. CMake writes the source file.
#pragma once

#include <span>
#include <string_view>

namespace millrace::plan {

struct BuiltInMachine {
  std::string_view name, yaml;
};

extern const std::span<const BuiltInMachine> kBuiltInMachines;  ///< sorted by name

}  // namespace millrace::plan
