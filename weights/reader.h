/* Readers of the file formats. Each adds the tensors of an open file to its table (weights/table.h). Private to
 * weights/. */
#ifndef WEIGHTS_READER_H
#define WEIGHTS_READER_H

#include "weights/weights.h"

int wt_safetensors_recognise(const wt_file *f);
mar_status wt_safetensors_read(wt_file *f, mar_err *err);
int wt_pytorch_recognise(const wt_file *f);
mar_status wt_pytorch_read(wt_file *f, mar_err *err);

#endif
