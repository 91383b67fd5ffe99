#include "apps/millrace/jobs/job_source.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "apps/common/output.h"
#include "millrace/base/text.h"
#include "millrace/jobs/source/source_archive.h"
#include "millrace/jobs/state.h"
#include "millrace/object/location.h"

namespace millrace::cli {
namespace {

struct UnpackArguments {
  std::string url, folder;
};

bool IsFolder(const jobs::Spec& spec) { return !spec.run.source.empty() && !jobs::SourceDigest(spec.run.source); }

std::string Describe(const std::string& folder, const jobs::SourceArchive& archive) {
  return fmt::format("{}: {} file{}, {}", folder, FormatCount(archive.files), archive.files == 1 ? "" : "s",
                     FormatBytes(archive.bytes.size()));
}

/// Returns a path of a file URL, as std::filesystem takes it.
Result<std::filesystem::path> FolderOf(const jobs::Spec& spec) {
  return std::filesystem::path(MR_TRY(object::ParseUrl(spec.run.source)).key);
}

/// Makes a folder that only this user can read: code may have secrets.
Status MakePrivate(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  if (error) return Fail(Code::kIo, "cannot make the folder {}: {}", folder, error.message());
  return {};
}

Status Unpack(const Context& context, const UnpackArguments& arguments) {
  const auto connection = MR_TRY(context.Connect());
  return jobs::GetSource(MR_TRY(object::Locate(*connection, arguments.url)), arguments.folder, {.stop = context.stop});
}

}  // namespace

Result<std::string> DescribeSource(const jobs::Spec& spec) {
  const auto folder = MR_TRY(FolderOf(spec));
  return Describe(spec.run.source, MR_TRY(jobs::PackSource(folder)));
}

Result<std::string> SourceFolder(const jobs::Spec& spec) {
  std::string url = spec.log.url.empty() ? spec.checkpoint.url : spec.log.url;
  if (url.empty()) url = MR_TRY(jobs::StateRoot()).string();
  if (!url.ends_with('/')) url += '/';
  return url + "source/";
}

Status PackJobSource(const Context& context, jobs::Spec& spec, bool only_names) {
  if (!IsFolder(spec)) return {};
  const auto code = MR_TRY(FolderOf(spec));
  const jobs::SourceArchive archive = MR_TRY(jobs::PackSource(code));
  const std::string folder = MR_TRY(SourceFolder(spec));
  const std::string url = folder + archive.name;
  if (!only_names) {
    if (spec.log.url.empty() && spec.checkpoint.url.empty()) MR_TRY(MakePrivate(folder));
    const auto connection = MR_TRY(context.Connect());
    const object::Location location = MR_TRY(object::Locate(*connection, folder));
    MR_TRY(jobs::PutSource(location, archive, {.stop = context.stop}));
    if (!context.globals.quiet) {
      PrintError("millrace: job {}: runs the code in {}, kept as {}\n", spec.name, Describe(spec.run.source, archive),
                 url);
    }
  }
  spec.run.source = url;
  return {};
}

void AddUnpackSourceCommand(CLI::App& job, Context& context) {
  auto arguments = std::make_shared<UnpackArguments>();
  CLI::App* unpack =
      AddCommand(job, context, "unpack-source", "Unpack the archive of a job's run.source", "", [&context, arguments] {
        const Status done = Unpack(context, *arguments);
        return done ? kExitOk : ReportError(context, done.error());
      });
  unpack->group("");
  unpack->add_option("URL", arguments->url, "The archive")->required();
  unpack->add_option("FOLDER", arguments->folder, "A new folder")->required();
}

}  // namespace millrace::cli
