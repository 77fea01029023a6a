/* The 1000 classes of ImageNet-1k (ILSVRC 2012), one a line, in the order every classifier and MAR use: the WordNet
 * synsets sorted by id (n01440764 ... n15075141), each with its synonyms. "crane" is two classes; each has one added name
 * to distinguish them. Writable: class_table_of splits the text into lines. */
        .data
        .hidden imagenet_classes
        .globl  imagenet_classes
imagenet_classes:
        .incbin "tools/generate/imagenet_classes.txt"
        .byte   0

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
