#include "apps/common/parse.h"

#include "apps/common/output.h"

namespace millrace::cli {

std::optional<int> ParseOrExit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    PrintError("{}: {}; see `{} --help`\n", app.get_name(), error.what(), app.get_name());
    return 2;
  }
  return std::nullopt;
}

}  // namespace millrace::cli
