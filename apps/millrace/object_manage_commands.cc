// rm, presign, mb, rb.
#include <map>

#include "apps/millrace/object_commands.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

Result<int> Remove(const Context& context, object::Connection& connection, const std::vector<std::string>& urls,
                   const SelectFlags& flags) {
  std::vector<Selection> selections;
  for (const std::string& url : MR_TRY(flags.Sources(urls))) {
    selections.push_back(MR_TRY(Select(connection, url, flags)));
    if (selections.back().place.key.empty() && !flags.recursive) {
      return Fail(Code::kInvalidArgument, "{} is a whole bucket; add --recursive to delete all that is in it", url);
    }
  }
  Run run(context, "rm");
  Status planned;
  std::map<std::string, Deletions> listed;  // by bucket
  for (const Selection& selection : selections) {
    if (flags.from_stdin && selection.single) {  // a long list: a thousand a request, and none asked for beforehand
      const Place& place = selection.place;
      listed.try_emplace(place.url.bucket, run, place, false).first->second.Add(place.key);
      continue;
    }
    Deletions deletions(run, selection.place, false);
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
  Place place = MR_TRY(OpenPlace(connection, flags.url));
  if (place.key.empty()) return Fail(Code::kInvalidArgument, "{} names no object", flags.url);
  std::string url = MR_TRY(place.store->Presign(flags.method, place.key, flags.valid_for));
  if (context.globals.json) {
    PrintJsonLine({{"source", place.Name()}, {"method", flags.method}, {"url", url}});
  } else {
    fmt::print("{}\n", url);
  }
  return kExitOk;
}

Result<int> ChangeBuckets(const Context& context, object::Connection& connection, const std::vector<std::string>& urls,
                          bool make) {
  Run run(context, make ? "mb" : "rb");
  std::shared_ptr<object::Service> service = MR_TRY(connection.OpenService());
  for (const std::string& text : urls) {
    object::Url url = MR_TRY(object::ParseUrl(text));
    if (url.scheme != object::Url::Scheme::kS3 || url.bucket.empty() || !url.key.empty()) {
      return Fail(Code::kInvalidArgument, "{} is no bucket; expected s3://bucket", text);
    }
    run.Add("s3://" + url.bucket, "", 0,
            [service, bucket = url.bucket, make](const object::Call& call) -> Result<bool> {
              MR_TRY(make ? service->MakeBucket(bucket, call) : service->RemoveBucket(bucket, call));
              return true;
            });
  }
  return run.Finish({});
}

}  // namespace

void AddManageCommands(CLI::App& app, Context& context) {
  auto urls = std::make_shared<std::vector<std::string>>();
  auto select = std::make_shared<SelectFlags>();
  CLI::App* rm = AddCommand(app, context, "rm", "Delete objects",
                            "  millrace rm s3://bucket/key\n"
                            "  millrace rm -r --dry-run s3://bucket/old/\n"
                            "  millrace rm 's3://bucket/*.tmp'\n",
                            [&context, urls, select] {
                              return WithConnection(context, [&](object::Connection& connection) {
                                return Remove(context, connection, *urls, *select);
                              });
                            });
  rm->add_option("URL", *urls, "s3://bucket/key, file:///path or a path; wildcards * ? [a-z]");
  select->AddTo(*rm);

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
  command->add_option("--method", presign->method, "GET or PUT")->check(CLI::IsMember({"GET", "PUT"}));
  command->add_option_function<std::string>(
      "--expires-in",
      [presign](const std::string& text) {
        auto parsed = ParseDuration(text);
        if (!parsed || *parsed <= Duration::zero() || *parsed > std::chrono::hours(24 * 7)) {
          throw CLI::ValidationError("--expires-in: " + text + " is no time of up to 7d, such as 15m");
        }
        presign->valid_for = *parsed;
      },
      "How long the URL works (default 1h, at most 7d)");

  for (bool make : {true, false}) {
    auto buckets = std::make_shared<std::vector<std::string>>();
    std::string verb = make ? "mb" : "rb";
    CLI::App* bucket = AddCommand(app, context, verb, make ? "Make buckets" : "Remove empty buckets",
                                  "  millrace " + verb + " s3://bucket\n", [&context, buckets, make] {
                                    return WithConnection(context, [&](object::Connection& connection) {
                                      return ChangeBuckets(context, connection, *buckets, make);
                                    });
                                  });
    bucket->add_option("URL", *buckets, "s3://bucket")->required();
  }
}

}  // namespace millrace::cli
