// The text of an export is made here, on a thread of management: it may be long.
#include "mgmt/export_routes.h"

#include "group/export_document.h"
#include "mgmt/replies.h"
#include "mgmt/requests.h"

namespace sandbay::mgmt {

namespace {

Reply export_group(Backend& backend, const Call&) {
  const auto exported = backend.run(backend.service().export_group());
  if (!exported) return refused(exported.error());
  return {.status = 200, .body = group::export_text(*exported)};
}

Reply import_part(Backend& backend, const Call& call) {
  auto part = read_import_part(call.body);
  if (!part) return error_reply(400, part.error());
  return answer(backend.run(backend.service().import_part(std::move(*part))));
}

// Nothing from the beginning on is what takes the place of an import that was announced.
Reply withdraw_import(Backend& backend, const Call&) {
  return answer(
      backend.run(backend.service().import_part({.text = "", .offset = 0, .force = true})));
}

}  // namespace

std::vector<Route> export_routes() {
  return {{.method = "POST",
           .path = "/api/v1/group/export",
           .operation = "exportGroup",
           .summary = "Export everything that was provisioned",
           .description = "The metadata at one moment as readable JSON: volumes, access records "
                          "with their secrets, pools with their maps, snapshots, schedules. No "
                          "data of volumes, and nothing that lies in NVRAM. It counts as a change, "
                          "since it shows secrets.",
           .response_schema = "GroupExport",
           .refusals = {500},
           .handle = export_group},
          {.method = "POST",
           .path = "/api/v1/group/import",
           .operation = "importGroup",
           .summary = "Import an export, piece by piece",
           .description = "The text in pieces in their order; the first has the offset 0. With "
                          "the last one the whole is checked, and takes the place of everything "
                          "at the daemon's next start; until then nothing of volumes, snapshots, "
                          "schedules, access, pools and members is changed any more. Refused while "
                          "something is provisioned, or there is a lead, unless by force. The "
                          "first piece of another "
                          "import withdraws one that waits.",
           .request_schema = "ImportPart",
           .success = 204,
           .refusals = {409, 500},
           .handle = import_part},
          {.method = "DELETE",
           .path = "/api/v1/group/import",
           .operation = "withdrawImport",
           .summary = "Withdraw an import that waits for the next start",
           .description = "Nothing happens if no import waits.",
           .success = 204,
           .refusals = {500},
           .handle = withdraw_import}};
}

}  // namespace sandbay::mgmt
