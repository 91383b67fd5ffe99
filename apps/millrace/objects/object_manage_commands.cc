// rm, presign, mb, rb.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "apps/common/flag_checks.h"
#include "apps/millrace/objects/object_versions.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

struct RemoveFlags {
  /// The versions that go: the current one, which leaves a delete marker where old ones are kept; all, for good; all,
  /// or the current one if the store does not list versions.
  enum class Versions { kCurrent, kAll, kAllThatAreListed } versions = Versions::kCurrent;
  std::vector<std::string> urls;
  SelectFlags select;
  std::string version_id;  ///< only this version goes
  bool yes = false;
};

/// Returns the items that rm shall remove. Errors: kInvalidArgument for a prefix or folder without --recursive.
Result<std::vector<Selection>> SelectRemovals(object::Connection& connection, const RemoveFlags& flags) {
  std::vector<Selection> selections;
  const bool one_version = !flags.version_id.empty();
  for (const std::string& url : MR_TRY(flags.select.Sources(flags.urls))) {
    selections.push_back(MR_TRY(Select(connection, url, flags.select)));
    const Selection& selection = selections.back();
    if (one_version && !selection.single) {
      return Fail(Code::kInvalidArgument, "--version-id is of one object, and {} may be many", url);
    }
    if (selection.single || selection.glob || flags.select.recursive) continue;
    return Fail(Code::kInvalidArgument, "{} is {}; add --recursive to delete all that is in it", url,
                selection.prefix.empty() ? "a whole bucket" : "a folder");
  }
  return selections;
}

/// Asks a user at a terminal before more than a thousand items are deleted. Returns true without a terminal.
Result<bool> Confirm(const Context& context, const std::vector<Selection>& selections, const RemoveFlags& flags) {
  constexpr std::uint64_t kManyItems = 1000;
  const bool many = std::ranges::any_of(selections, [](const Selection& selection) { return !selection.single; });
  if (!many || flags.yes || context.globals.dry_run || context.shared_connection != nullptr) return true;
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) return true;
  std::uint64_t count = 0, bytes = 0;
  for (const Selection& selection : selections) {
    auto add = [&](std::uint64_t size) -> Status {
      ++count;
      bytes += size;
      return {};
    };
    if (flags.versions == RemoveFlags::Versions::kAll) {
      MR_TRY(ForEachVersion(selection, {.stop = context.stop},
                            [&](const object::VersionInfo& version) { return add(version.info.size); }));
      continue;
    }
    MR_TRY(ForEach(
        selection, {.stop = context.stop}, [](const std::string&, const Error&) {},
        [&](const transfer::Item& item) { return add(item.info.size); }));
  }
  if (count <= kManyItems) return true;
  PrintError("rm: delete {} items ({}) of {}? [y/N] ", FormatCount(count), FormatBytes(bytes),
             selections.size() == 1 ? selections.front().place.Name() : "all that is named");
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

/// Adds the deletion of the versions that the selection and the flags select. Errors: kNotFound if there are none.
Status AddVersionDeletions(TransferRun& run, const Selection& selection, const RemoveFlags& flags) {
  VersionDeletions deletions(run, selection.place);
  bool any = false;
  const Status listed = ForEachVersion(selection, run.call(), [&](object::VersionInfo version) -> Status {
    if (!flags.version_id.empty() && version.id != flags.version_id) return {};
    any = true;
    deletions.Add({std::move(version.info.key), std::move(version.id)});
    return {};
  });
  deletions.Flush();
  if (!listed || any || selection.place.key.empty()) return listed;
  return Fail(Code::kNotFound, "{} has no version{}{}; `millrace ls --versions` shows them", selection.place.Name(),
              flags.version_id.empty() ? "" : " ", flags.version_id);
}

Result<int> Remove(const Context& context, object::Connection& connection, const RemoveFlags& flags) {
  const std::vector<Selection> selections = MR_TRY(SelectRemovals(connection, flags));
  if (!MR_TRY(Confirm(context, selections, flags))) {
    PrintError("millrace: rm: nothing was deleted\n");
    return kExitFailed;
  }
  TransferRun run(context, "rm");
  Status planned;
  std::map<std::string, Deletions> listed;  // by bucket
  using Versions = RemoveFlags::Versions;
  for (const Selection& selection : selections) {
    const ObjectPlace& place = selection.place;
    if (flags.versions != Versions::kCurrent || !flags.version_id.empty()) {
      planned = AddVersionDeletions(run, selection, flags);
      if (planned) continue;
      // Servers that keep no versions answer in many ways. What else is wrong shows again when objects are listed.
      if (flags.versions != Versions::kAllThatAreListed || planned.error().code() == Code::kCancelled) break;
    }
    if (flags.select.from_stdin && selection.single && !place.local()) {
      // A long list: deletes a thousand keys per request, without a look-up of each.
      listed.try_emplace(place.url.bucket, run, place, "", false).first->second.Add(place.key);
      continue;
    }
    Deletions deletions(run, place, selection.Folder(), false);
    planned = ForEach(
        selection, run.call(),
        [&](const std::string& path, const Error& error) { run.AddFailure("/" + path, "", error); },
        [&](transfer::Item item) -> Status {
          deletions.Add(std::move(item.info.key));
          return {};
        });
    deletions.Flush();
    if (!planned) break;
  }
  for (auto& [bucket, deletions] : listed) deletions.Flush();
  return run.Finish(planned);
}

struct PresignFlags {
  std::string url, method = "GET";
  Duration valid_for = std::chrono::hours(1);
};

Result<int> Presign(const Context& context, object::Connection& connection, const PresignFlags& flags) {
  ObjectPlace place = MR_TRY(OpenPlace(connection, flags.url));
  if (place.key.empty())
    return Fail(Code::kInvalidArgument, "{} names no object; add a key, as in s3://bucket/key", flags.url);
  std::string url = MR_TRY(place.store->Presign(flags.method, place.key, flags.valid_for));
  if (context.globals.json) {
    PrintJsonLine({{"source", place.Name()}, {"method", flags.method}, {"url", url}});
  } else {
    Print("{}\n", url);
  }
  return kExitOk;
}

Result<std::string> BucketOf(const std::string& text) {
  object::Url url = MR_TRY(object::ParseUrl(text));
  if (url.scheme == object::Url::Scheme::kS3 && !url.bucket.empty() && url.key.empty()) return url.bucket;
  return Fail(Code::kInvalidArgument, "{} is not a bucket; expected s3://bucket", text);
}

/// Returns whether the bucket is one of the user's own.
Result<bool> Owns(object::Service& service, const std::string& bucket, const object::Call& call) {
  const auto buckets = MR_TRY(service.ListBuckets(call));
  return std::ranges::any_of(buckets, [&](const auto& one) { return one.name == bucket; });
}

Result<int> MakeBuckets(const Context& context, object::Connection& connection, const std::vector<std::string>& urls) {
  TransferRun run(context, "mb");
  std::shared_ptr<object::Service> service = MR_TRY(connection.OpenService());
  for (const std::string& text : urls) {
    const std::string bucket = MR_TRY(BucketOf(text));
    MR_TRY(object::CheckNewBucketName(bucket));
    run.Add("s3://" + bucket, "", 0, [service, bucket](const object::Call& call) -> Result<bool> {
      const Status made = service->MakeBucket(bucket, call);
      if (made) return true;
      if (made.error().code() != Code::kAlreadyExists || !MR_TRY(Owns(*service, bucket, call)))
        return Fail(made.error());
      return false;
    });
  }
  return run.Finish({});
}

/// Aborts the unfinished uploads of a bucket. A store that cannot list them may still remove the bucket.
Status AbortAll(object::Store& store, const object::Call& call) {
  const auto uploads = object::ListUploads(store, "", call);
  if (!uploads && (IsRetryable(uploads.error().code()) || uploads.error().code() == Code::kCancelled))
    return Fail(uploads.error());
  for (const object::UploadInfo& upload : uploads.value_or(std::vector<object::UploadInfo>())) {
    MR_TRY(object::AbortMultipart(store, upload.key, upload.upload_id, call));
  }
  return {};
}

struct RemoveBucketFlags {
  RemoveFlags removal;
  bool force = false;  ///< with all that is in them
};

Result<int> RemoveBuckets(const Context& context, object::Connection& connection, const RemoveBucketFlags& flags) {
  for (const std::string& text : flags.removal.urls) MR_TRY(BucketOf(text));
  if (flags.force) {
    const int emptied = MR_TRY(Remove(context, connection, flags.removal));
    if (emptied != kExitOk) return emptied;
  }
  TransferRun run(context, "rb");
  std::shared_ptr<object::Service> service = MR_TRY(connection.OpenService());
  for (const std::string& text : flags.removal.urls) {
    ObjectPlace place = MR_TRY(OpenPlace(connection, text));
    run.Add("s3://" + place.url.bucket, "", 0,
            [service, place, force = flags.force](const object::Call& call) -> Result<bool> {
              if (force) MR_TRY(AbortAll(*place.store, call));
              MR_TRY(service->RemoveBucket(place.url.bucket, call));
              return true;
            });
  }
  return run.Finish({});
}

struct UploadsFlags {
  std::string url;
  Duration older_than = Duration::zero();
};

/// Multipart uploads below the URL that nobody has completed or aborted.
Result<std::vector<object::UploadInfo>> UnfinishedUploads(const ObjectPlace& place, const UploadsFlags& flags,
                                                          const object::Call& call) {
  auto uploads = MR_TRY(object::ListUploads(*place.store, place.key, call));
  const WallTime latest = SystemClock().Wall() - std::chrono::duration_cast<WallTime::duration>(flags.older_than);
  std::erase_if(uploads, [&](const object::UploadInfo& upload) { return upload.initiated > latest; });
  return uploads;
}

Result<int> ListUnfinished(const Context& context, object::Connection& connection, const UploadsFlags& flags) {
  ObjectPlace place = MR_TRY(OpenPlace(connection, flags.url));
  for (const object::UploadInfo& upload : MR_TRY(UnfinishedUploads(place, flags, {.stop = context.stop}))) {
    const std::string begun = FormatIso8601(upload.initiated);
    if (context.globals.json) {
      PrintJsonListing({{"key", upload.key}, {"upload_id", upload.upload_id}, {"initiated", begun}});
    } else {
      PrintListing("{} {} {}\n", begun, upload.upload_id, place.Name(upload.key));
    }
  }
  return kExitOk;
}

Result<int> AbortUnfinished(const Context& context, object::Connection& connection, const UploadsFlags& flags) {
  ObjectPlace place = MR_TRY(OpenPlace(connection, flags.url));
  TransferRun run(context, "abort");
  for (const object::UploadInfo& upload : MR_TRY(UnfinishedUploads(place, flags, run.call()))) {
    run.Add(place.Name(upload.key), "", 0, [store = place.store, upload](const object::Call& call) -> Result<bool> {
      MR_TRY(object::AbortMultipart(*store, upload.key, upload.upload_id, call));
      return true;
    });
  }
  return run.Finish({});
}

void AddUploadsCommand(CLI::App& app, Context& context) {
  CLI::App* uploads = app.add_subcommand("uploads", "List or abort unfinished multipart uploads, which use storage");
  uploads->require_subcommand(1);
  for (bool abort : {false, true}) {
    auto flags = std::make_shared<UploadsFlags>();
    CLI::App* command = AddCommand(
        *uploads, context, abort ? "abort" : "ls", abort ? "Abort unfinished uploads" : "List unfinished uploads",
        abort ? "  millrace uploads abort s3://bucket/data/ --older-than 7d\n" : "  millrace uploads ls s3://bucket\n",
        [&context, flags, abort] {
          return WithConnection(context, [&](object::Connection& connection) {
            return abort ? AbortUnfinished(context, connection, *flags) : ListUnfinished(context, connection, *flags);
          });
        });
    command->add_option("URL", flags->url, "s3://bucket or s3://bucket/prefix")->required();
    command->add_option_function<std::string>(
        "--older-than",
        [flags](const std::string& text) {
          auto parsed = ParseDuration(text);
          if (!parsed) throw CLI::ValidationError("--older-than: " + parsed.error().ToString());
          flags->older_than = *parsed;
        },
        "Only uploads older than this, such as 1h or 7d; younger ones may still run");
  }
}

}  // namespace

void AddManageCommands(CLI::App& app, Context& context) {
  auto removal = std::make_shared<RemoveFlags>();
  CLI::App* rm = AddCommand(app, context, "rm", "Delete objects",
                            "  millrace rm s3://bucket/key\n"
                            "  millrace rm -r --dry-run s3://bucket/old/\n"
                            "  millrace rm 's3://bucket/*.tmp'\n"
                            "  millrace rm -r --versions s3://bucket/old/   # of a bucket that keeps versions\n",
                            [&context, removal] {
                              return WithConnection(context, [&](object::Connection& connection) {
                                return Remove(context, connection, *removal);
                              });
                            });
  rm->add_option("URL", removal->urls, "s3://bucket/key, file:///path or a path; wildcards * ? [a-z]");
  removal->select.removes = removal->select.bookkeeping = true;
  removal->select.AddTo(*rm);
  auto* all = rm->add_flag_callback(
      "--versions", [removal] { removal->versions = RemoveFlags::Versions::kAll; },
      "Delete all versions and delete markers, for good");
  rm->add_option("--version-id", removal->version_id, "Delete only this version of the object, for good")
      ->excludes(all);
  rm->add_flag("-y,--yes", removal->yes, "Delete more than 1,000 items without asking");

  auto presign = std::make_shared<PresignFlags>();
  CLI::App* command = AddCommand(app, context, "presign", "Make a URL that lets its holder read or write an object",
                                 "  millrace presign s3://bucket/model.bin --expires-in 15m\n"
                                 "  curl -T file \"$(millrace presign --method PUT s3://bucket/inbox/file)\"\n",
                                 [&context, presign] {
                                   return WithConnection(context, [&](object::Connection& connection) {
                                     return Presign(context, connection, *presign);
                                   });
                                 });
  command->add_option("URL", presign->url, "s3://bucket/key")->required();
  command->add_option("--method", presign->method, "GET or PUT")->check(OneOf({"GET", "PUT"}));
  command->add_option_function<std::string>(
      "--expires-in",
      [presign](const std::string& text) {
        const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        auto parsed = ParseDuration(number ? text + "s" : text);
        if (!parsed || *parsed <= Duration::zero() || *parsed > std::chrono::hours(24 * 7)) {
          throw CLI::ValidationError("--expires-in: " + text +
                                     " is not a duration of at most 7d; write 15m or 900 (seconds)");
        }
        presign->valid_for = *parsed;
      },
      "How long the URL works, such as 15m; a number is seconds (default: 1h, at most 7d)");

  auto made = std::make_shared<std::vector<std::string>>();
  CLI::App* mb = AddCommand(app, context, "mb", "Make buckets", "  millrace mb s3://bucket\n", [&context, made] {
    return WithConnection(context,
                          [&](object::Connection& connection) { return MakeBuckets(context, connection, *made); });
  });
  mb->add_option("URL", *made, "s3://bucket")->required();

  auto removed = std::make_shared<RemoveBucketFlags>();
  CLI::App* rb = AddCommand(app, context, "rb", "Remove empty buckets",
                            "  millrace rb s3://bucket\n"
                            "  millrace rb --force s3://bucket   # with all that is in it\n",
                            [&context, removed] {
                              return WithConnection(context, [&](object::Connection& connection) {
                                return RemoveBuckets(context, connection, *removed);
                              });
                            });
  rb->add_option("URL", removed->removal.urls, "s3://bucket")->required();
  rb->add_flag("--force", removed->force,
               "First delete all objects with all their versions, and abort all unfinished uploads");
  removed->removal.versions = RemoveFlags::Versions::kAllThatAreListed;
  rb->add_flag("-y,--yes", removed->removal.yes, "Delete more than 1,000 objects without asking");
  removed->removal.select.recursive = removed->removal.select.bookkeeping = true;
  AddUploadsCommand(app, context);
  AddUndeleteCommand(app, context);
}

}  // namespace millrace::cli
