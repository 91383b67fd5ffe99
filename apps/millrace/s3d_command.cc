// `millrace s3d`: an S3 endpoint for development, tests and drills.
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/s3d/fault.h"
#include "millrace/s3d/server.h"

namespace millrace::cli {
namespace {

constexpr Duration kStopGrace = std::chrono::seconds(5);
constexpr std::size_t kMaxPolicyBytes = 64 * kKiB;

struct S3dFlags {
  s3d::Options options;
  std::string port_file, policy_file;
};

void FromEnvironment(const char* name, std::string& value) {
  if (const char* set = std::getenv(name); value.empty() && set) value = set;
}

Status Serve(const Context& context, S3dFlags flags) {
  s3d::Options& options = flags.options;
  FromEnvironment("MILLRACE_S3D_ACCESS_KEY", options.access_key);
  FromEnvironment("MILLRACE_S3D_SECRET_KEY", options.secret_key);
  if (options.access_key.empty() != options.secret_key.empty()) {
    return Fail(Code::kInvalidArgument, "an access key and a secret key belong together: give both, or neither");
  }
  if (options.access_key.empty() && !options.anonymous) {
    return Fail(
        Code::kInvalidArgument,
        "the endpoint has no keys: set MILLRACE_S3D_ACCESS_KEY and MILLRACE_S3D_SECRET_KEY (or --access-key and "
        "--secret-key), or give --anonymous");
  }
  if (options.anonymous && options.insecure) {
    context.log().Warning("everybody who can reach this address can read and write", {{"listen", options.listen}});
  }
  if (!flags.policy_file.empty()) options.policy = MR_TRY(ReadFile(flags.policy_file, kMaxPolicyBytes));
  options.log = context.log();
  auto server = MR_TRY(s3d::Server::Start(options));
  if (!flags.port_file.empty()) {
    MR_TRY(WriteFileAtomic(flags.port_file, AsBytes(fmt::format("{}\n", server->port()))));
  }
  if (context.globals.json) {
    PrintJsonLine({{"event", "listening"}, {"endpoint", server->endpoint()}, {"root", options.root.string()}});
  } else {
    Print("{}\n", server->endpoint());
    FlushOutput();
  }
  SystemClock().SleepUntil(TimePoint::max(), context.stop);
  server->Stop(kStopGrace);
  if (!options.policy.empty()) {
    context.log().Info("the endpoint has ended",
                       {{"actions", fmt::format("{}", fmt::join(server->used_actions(), " "))}});
  }
  return {};
}

}  // namespace

void AddS3dCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<S3dFlags>();
  std::string examples =
      "  MILLRACE_S3D_ACCESS_KEY=dev MILLRACE_S3D_SECRET_KEY=devsecret millrace s3d --root /tmp/s3 --listen "
      "127.0.0.1:9000\n"
      "  millrace s3d --root /tmp/s3 --anonymous --port-file /tmp/s3.port\n\nFaults:\n";
  examples += s3d::FaultHelp();
  CLI::App* command = AddCommand(app, context, "s3d", "Serve a folder as an S3 endpoint, for development and tests",
                                 std::move(examples), [&context, flags] {
                                   auto served = Serve(context, *flags);
                                   return served ? kExitOk : ReportError(context, served.error());
                                 });
  s3d::Options& options = flags->options;
  command->add_option("--root", options.root, "Folder that holds the buckets (created if missing)")->required();
  command->add_option("--listen", options.listen, "HOST:PORT; port 0 chooses a free port")->capture_default_str();
  command->add_option("--port-file", flags->port_file,
                      "Write the port to this file when the server accepts connections");
  command->add_option("--access-key", options.access_key, "Access key (or MILLRACE_S3D_ACCESS_KEY)");
  command->add_option("--secret-key", options.secret_key,
                      "Secret key (better: MILLRACE_S3D_SECRET_KEY, which other users cannot see)");
  command->add_option("--policy", flags->policy_file,
                      "File with a policy of IAM; nothing else than it allows is served");
  command->add_flag("--anonymous", options.anonymous,
                    "Also accept unsigned requests, but only on loopback and not from web pages");
  command->add_flag("--insecure", options.insecure,
                    "With --anonymous: listen beyond loopback too, where everybody may read and write");
  command->add_flag("!--no-sync", options.sync,
                    "Do not fsync: acknowledged writes survive a kill of this process, but not a power failure");
  command->add_option("--fault", options.fault, "Faults to inject, as described below");
}

}  // namespace millrace::cli
