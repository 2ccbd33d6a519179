/* Classifies one image from its bytes with an exported SavedModel, through TensorFlow's C API alone.
 *
 * classify FOLDER IMAGE INPUT CLASSES SCORES ERROR
 *
 * The last four are names of tensors, such as "StatefulPartitionedCall:1". Prints one line per class, "SCORE CLASS",
 * and then "error: TEXT".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static TF_Status *status;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(const char *what) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
}

static TF_Output find(TF_Graph *graph, const char *name) {
  char operation[256];
  const char *colon = strrchr(name, ':');
  if (colon == NULL || colon - name >= (long)sizeof(operation)) fail("not the name of a tensor", name);
  memcpy(operation, name, colon - name);
  operation[colon - name] = 0;
  TF_Output output = {TF_GraphOperationByName(graph, operation), atoi(colon + 1)};
  if (output.oper == NULL) fail("no operation", operation);
  return output;
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail("cannot open", path);
  fseek(file, 0, SEEK_END);
  *size = ftell(file);
  rewind(file);
  char *contents = malloc(*size);
  if (fread(contents, 1, *size, file) != *size) fail("cannot read", path);
  fclose(file);
  return contents;
}

int main(int count, char **words) {
  if (count != 7) fail("usage", "classify FOLDER IMAGE INPUT CLASSES SCORES ERROR");
  status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, words[1], tags, 1, graph, NULL, status);
  check("load");

  size_t size;
  char *contents = read_file(words[2], &size);
  const int64_t shape[] = {1};
  TF_Tensor *input = TF_AllocateTensor(TF_STRING, shape, 1, sizeof(TF_TString));
  TF_TString *string = TF_TensorData(input);
  TF_StringInit(string);
  TF_StringCopy(string, contents, size);

  TF_Output taken = find(graph, words[3]);
  TF_Output given[] = {find(graph, words[4]), find(graph, words[5]), find(graph, words[6])};
  TF_Tensor *answers[3];
  TF_SessionRun(session, NULL, &taken, &input, 1, given, answers, 3, NULL, 0, NULL, status);
  check("run");

  const TF_TString *classes = TF_TensorData(answers[0]), *error = TF_TensorData(answers[2]);
  const float *scores = TF_TensorData(answers[1]);
  for (int64_t k = 0; k < TF_Dim(answers[0], 1); ++k)
    printf("%.9g %.*s\n", scores[k], (int)TF_StringGetSize(&classes[k]), TF_StringGetDataPointer(&classes[k]));
  printf("error: %.*s\n", (int)TF_StringGetSize(error), TF_StringGetDataPointer(error));

  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  free(contents);
  return 0;
}
