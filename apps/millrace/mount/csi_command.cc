// `millrace csi`: runs millrace-csi.
#include <algorithm>
#include <cstdlib>

#include "apps/millrace/cli/cli.h"

namespace millrace::cli {
namespace {

/// Runs millrace-csi in place of this process. Flags before the word `csi` become its environment.
int RunCsi(const Context& context) {
  for (const auto& [name, value] : GlobalsEnvironment(context.globals)) ::setenv(name.c_str(), value.c_str(), 1);
  const auto word = std::ranges::find(context.arguments, "csi");
  const std::vector<std::string> arguments(word + (word != context.arguments.end()), context.arguments.end());
  const Error failed = ExecSibling("millrace-csi", arguments);
  if (failed.code() != Code::kNotFound) return ReportError(context, failed);
  return ReportError(context, {Code::kNotFound,
                               "millrace-csi is not beside millrace: it is in the package millrace-csi, and is built "
                               "where libgrpc++-dev, protobuf-compiler and protobuf-compiler-grpc are installed; the "
                               "program in one file is both: ln -s millrace millrace-csi"});
}

}  // namespace

void AddCsiCommand(CLI::App& app, Context& context) {
  CLI::App* csi = AddCommand(app, context, "csi", "Volumes of Kubernetes in buckets: the CSI driver (millrace-csi)", "",
                             [&context] { return RunCsi(context); });
  csi->prefix_command();  // whatever follows is for millrace-csi, --help too
  csi->fallthrough(false);
  csi->set_help_flag();
}

}  // namespace millrace::cli
