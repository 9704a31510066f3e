// cnirun calls the plugins of a network configuration list through libcni, as container runtimes do.
//
//	cnirun -conf FILE -path DIR[:DIR] [-cache DIR] [-id ID] [-if NAME] [-args K=V;K=V] [-cap JSON] VERB [NETNS]
//
// VERB is add, check, del or validate. The result of add, and the plugins that validate found, go to standard output;
// what failed goes to standard error, and the exit status is 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("conf", "", "configuration list")
	path := flag.String("path", "", "folders of plugins")
	cache := flag.String("cache", "/var/lib/cni", "where libcni keeps results")
	var runtime libcni.RuntimeConf
	flag.StringVar(&runtime.ContainerID, "id", "cnirun", "container")
	flag.StringVar(&runtime.IfName, "if", "eth0", "interface in the container")
	args := flag.String("args", "", "CNI_ARGS")
	capabilities := flag.String("cap", "{}", "what the runtime knows, by capability")
	flag.Parse()
	runtime.NetNS = flag.Arg(1)
	for _, word := range strings.FieldsFunc(*args, func(r rune) bool { return r == ';' }) {
		key, value, found := strings.Cut(word, "=")
		if !found {
			return fmt.Errorf("-args: %q is no K=V", word)
		}
		runtime.Args = append(runtime.Args, [2]string{key, value})
	}
	if err := json.Unmarshal([]byte(*capabilities), &runtime.CapabilityArgs); err != nil {
		return fmt.Errorf("-cap: %w", err)
	}
	list, err := libcni.ConfListFromFile(*file)
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir(strings.Split(*path, ":"), *cache, nil)
	ctx := context.Background()
	switch verb := flag.Arg(0); verb {
	case "add":
		result, err := cni.AddNetworkList(ctx, list, &runtime)
		if err != nil {
			return err
		}
		return result.Print()
	case "check":
		return cni.CheckNetworkList(ctx, list, &runtime)
	case "del":
		return cni.DelNetworkList(ctx, list, &runtime)
	case "validate":
		found, err := cni.ValidateNetworkList(ctx, list)
		fmt.Println(strings.Join(found, " "))
		return err
	default:
		return errors.New("the verb is add, check, del or validate, not " + verb)
	}
}
