// The name is changed inside the seal of the checkpoint.
#include "pool/log_name.h"

#include "pool/map_records.h"
#include "pool/sealed.h"

namespace sandbay::pool {

bool rename_log(metadata::Entry* checkpoint, const Uuid& name) {
  const auto value = unsealed(checkpoint->first, checkpoint->second);
  if (!value.has_value()) return false;
  auto record = unpack_checkpoint(*value);
  if (!record.has_value() || record->log == Uuid{}) return false;
  record->log = name;
  checkpoint->second = sealed(checkpoint->first, pack(*record));
  return true;
}

}  // namespace sandbay::pool
